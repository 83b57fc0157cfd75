"""`dry_run`: what a run would do, found out without starting, fetching or writing anything."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from producer.counted import counted
from producer.prompts import open_prompts, with_requested
from producer.record import Record
from producer.run_options import RunOptions
from producer.source import PromptSource
from producer.visible_text import visible
from schemas.errors import ModelError, RowError
from schemas.profile import ExecutionProfile
from worker.engine.completion import Request
from worker.engine.encoding import check_length, encode_prompt
from worker.engine.model_store import resolve_model
from worker.engine.scripted import is_scripted

SHOWN = 3  # prompts
NAMED = 10  # blank prompts
COUNTED = 500  # prompts whose tokens are counted; the rest is taken to be like them
RULE = "-" * 72


def dry_run(options: RunOptions, note: Callable[[str], None]) -> str:
    """Three prompts as the model will see them, which prompts cannot run, and how much work there is.

    Raises:
        InputError: what the run itself would refuse about the prompts.
        ModelError: the tokenizer cannot be loaded, or only with code of its own.
    """
    source = open_prompts(options, note)
    options, source = with_requested(options, source, note)
    encoder = _Encoder.of(options, note)
    lines: list[str] = []
    for record in islice(_good(source), SHOWN):
        lines += [f"{RULE}", f"{record.record_id}: {_described(record, encoder)}"]
    rows = source.records * options.samples
    product = f"{counted(source.records, 'record')} × {options.samples:,} = {counted(rows, 'row')}"
    lines += [RULE, f"{product} in {counted(source.shards, 'shard')}"]
    if source.bad:
        lines.append(f"{source.bad:,} {'bad line becomes an error row' if source.bad == 1 else 'bad lines become error rows'}")
    lines += [f"note: {warning}" for warning in (*_blank_prompts(source), *source.warnings)]
    if encoder is not None:
        lines += _prompt_tokens(source, encoder)
    lines.append(_budget(source, options, rows))
    lines.append("nothing was started; the same command without --dry-run begins")
    return visible("\n".join(lines))


@dataclass(frozen=True)
class _Encoder:
    """The model's tokenizer, and how long prompt and completion may be together.

    Attributes:
        tokenizer: mlx-lm's `TokenizerWrapper`.
        options: of the run.
        limit: in tokens.
    """

    tokenizer: Any
    options: RunOptions
    limit: int

    @classmethod
    def of(cls, options: RunOptions, note: Callable[[str], None]) -> "_Encoder | None":
        """The encoder of a run, or None where the model is not on this machine."""
        if is_scripted(options.model):
            return None
        try:
            folder = resolve_model(options.model, offline=True)
        except ModelError:
            note(f"the model {options.model} is not on this machine yet: no token counts (specmill model fetch {options.model})")
            return None
        from worker.engine.model_loading import load_tokenizer

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        longest = ExecutionProfile().capacities[-1] - options.resolved_depth - 1
        context = config.get("text_config", config).get("max_position_embeddings") or longest
        return cls(load_tokenizer(folder, trust_remote_code=options.trust_remote_code), options, min(context, longest))

    def encode(self, record: Record) -> list[int]:
        """The prompt's ids.

        Raises:
            RowError: the record cannot run.
        """
        request = Request(index=0, sample=0, key=0, prompt=record.prompt, messages=record.messages, bad_input=None)
        ids = encode_prompt(request, self.tokenizer, raw=self.options.raw, template_args=self.options.template_args)
        check_length(len(ids), _max_tokens(record, self.options), self.limit)
        return ids


def _good(source: PromptSource) -> Iterator[Record]:
    for shard in range(source.shards):
        yield from (record for record in source.read_shard(shard) if record.bad_input is None)


def _blank_prompts(source: PromptSource) -> list[str]:
    """Which prompts ask for nothing: they, or the last of their messages, are empty or white space. All of the file is read for it."""
    count, names = 0, []
    for record in _good(source):
        asked = record.messages[-1]["content"] if record.messages is not None else str(record.prompt)
        if asked.strip() or record.sample:
            continue
        count += 1
        if count <= NAMED:
            names.append(source.reader.origins.name(record.line))
    more = f" and {count - NAMED:,} more" if count > NAMED else ""
    return [f"{count:,} {'prompt is' if count == 1 else 'prompts are'} blank: {', '.join(names)}{more}"] if count else []


def _max_tokens(record: Record, options: RunOptions) -> int:
    own = record.options.get("max_tokens", options.max_tokens)
    assert isinstance(own, int)
    return own


def _described(record: Record, encoder: _Encoder | None) -> str:
    if encoder is None:
        turns = record.messages or [{"role": "user", "content": str(record.prompt)}]
        return "\n".join(["", *(f"[{turn['role']}] {turn['content']}" for turn in turns)])
    try:
        ids = encoder.encode(record)
    except RowError as error:
        return f"becomes an error row: {type(error).__name__}: {error}"
    return f"{counted(len(ids), 'token')}\n{encoder.tokenizer.decode(ids)}"


def _prompt_tokens(source: PromptSource, encoder: _Encoder) -> list[str]:
    """How long prompts are, and which of them cannot run, and why."""
    counts: list[int] = []
    failed: list[str] = []
    for record in islice(_good(source), COUNTED):
        try:
            counts.append(len(encoder.encode(record)))
        except RowError as error:
            failed.append(f"  {record.record_id}: {type(error).__name__}: {error}")
    seen = len(counts) + len(failed)
    lines = []
    if counts:
        mean = sum(counts) / len(counts)
        whole = seen + source.bad >= source.records
        total = sum(counts) if whole else round(mean * (source.records - source.bad))
        lines.append(
            f"{'' if whole else 'about '}{counted(total * encoder.options.samples, 'token')} of prompts "
            f"({mean:,.1f} on average, longest {max(counts):,})"
        )
    if failed:
        of = "the" if seen + source.bad >= source.records else "the first"
        lines.append(f"{len(failed):,} of {of} {seen:,} prompts cannot run and become error rows:")
        lines += [*failed[:SHOWN], *([f"  … and {len(failed) - SHOWN:,} more"] if len(failed) > SHOWN else [])]
    return lines


def _budget(source: PromptSource, options: RunOptions, rows: int) -> str:
    if "max_tokens" not in source.own:
        return f"at most {counted(rows * options.max_tokens, 'token')} to generate ({options.max_tokens:,} per row)"
    budgets = [_max_tokens(record, options) for record in _good(source)]
    return f"at most {counted(sum(budgets) * options.samples, 'token')} to generate ({min(budgets):,} to {max(budgets):,} per row)"
