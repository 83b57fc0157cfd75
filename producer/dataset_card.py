"""`OUT/README.md`: the dataset card, with the front matter that the Hugging Face hub reads."""

import json
from collections.abc import Iterable

from producer.counted import counted
from producer.run_summary import RunSummary
from producer.sampler_text import drafter_text, form_text, sampler_text
from schemas.manifest import Manifest
from schemas.run_spec import ModelRef
from worker.landing import written_whole
from worker.remote_path import Place

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))


def dataset_card(manifest: Manifest, summary: RunSummary, command: str) -> str:
    """The card as Markdown; it names no host, no time and no user.

    Args:
        manifest: the finished dataset's.
        summary: what it holds.
        command: the shell command that creates it again.
    """
    spec = manifest.spec
    profile = spec.profile
    backends = sorted(
        {f"{b.chip} ({b.device}, mlx {b.mlx}{', ' + b.blas if b.blas else ''})" for b in (s.backend for s in manifest.shards)}
    )
    size = next((name for limit, name in _SIZES if summary.rows < limit), "n>10M")
    numbers = [
        ("records × samples", f"{spec.records:,} × {spec.samples:,} = {counted(summary.rows, 'row')}"),
        ("failed rows", ", ".join(f"{kind} {count:,}" for kind, count in sorted(summary.failures.items())) or "none"),
        ("finish reasons", ", ".join(f"{reason} {count:,}" for reason, count in sorted(summary.finish_reasons.items()))),
        ("tokens", f"{summary.completion_tokens:,} generated, {summary.prompt_tokens:,} of prompts"),
    ]
    if summary.drafted_by_depth:
        numbers.append(("acceptance by depth", summary.acceptance_text(", ", decimals=4) or "nothing was drafted"))
    if summary.tokens_per_cycle:
        numbers.append(("tokens per cycle", f"{summary.tokens_per_cycle:.3f}"))
    if summary.z is not None:
        numbers.append(("calibration z", f"{summary.z:+.3f} (accepted drafts against their expected number, in standard deviations)"))
    settings = [
        ("model", _reference(spec.model)),
        ("drafter", drafter_text(spec)),
        ("sampler", sampler_text(spec.sampler)),
        ("max tokens", f"{spec.max_tokens:,}"),
        *([("rows' own", f"{', '.join(spec.per_row)} (column `sampling`, where it is not null)")] if spec.per_row else []),
        ("stop strings", ", ".join(f"`{json.dumps(text, ensure_ascii=False)}`" for text in spec.stop) or "none"),
        *([("form", form)] if (form := form_text(spec)) else []),
        ("prompt", "encoded as it stands" if spec.raw else "through the model's chat template"),
        *([("chat template arguments", f"`{json.dumps(spec.template_args)}`")] if spec.template_args else []),
        ("run seed", f"{spec.seed} (the key of a row is a function of it, the record id and the sample; column `seed`)"),
        ("coupling", spec.coupling),
        ("profile", f"{profile.slots} slots, depth {profile.depth}, {profile.dtype}, prefill chunk {profile.prefill_chunk}"),
        ("prompts digest", f"`sha256:{spec.prompts_digest}`"),
        ("computed on", "; ".join(backends)),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))),
    ]
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
size_categories:
- {size}
tags:
- synthetic
- specmill
---

# {spec.model.name}: {counted(summary.rows, "completion")}

Made by specmill with exact speculative sampling: every token was drawn from the model's own distribution under the sampler below, whatever
the head drafted. A row that failed is here too, with its `error` filled and its completion empty.

{_table(numbers)}

## How it was made

{_table(settings)}

## How to make it again

```
{command}
```

`manifest.json` holds the whole specification and the digests of the model's files, of the prompts and of every part file.

## Columns

`record_id`, `row` and `sample` name the row; `prompt` or `messages` and the input's other columns follow; then `completion`,
`token_ids`, `finish_reason` (stop, length or error), `error`, `prompt_tokens`, `completion_tokens`, `seed`, `acceptance` (cycles, drafts,
accepted ones by depth, and Σα and Σα(1-α) over the judged drafts) and `logprob_sum`{", `logprobs`" if spec.logprobs else ""}.
"""


def write_card(path: Place, text: str) -> None:
    """Write the card, whole or not at all.

    Raises:
        UnwritableError: it could not be written.
    """
    with written_whole(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _reference(reference: ModelRef) -> str:
    return f"{reference.name} (`sha256:{reference.digest}`)"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = [(name, value.replace("|", "\\|").replace("\n", " ")) for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells)])
