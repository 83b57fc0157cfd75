"""`dry_run`: what a run would do, found out without starting, fetching or writing anything."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from producer.prompts import open_prompts, with_requested
from producer.record import Record
from producer.run_options import RunOptions
from producer.source import PromptSource
from schemas.errors import ModelError, RowError
from worker.engine.completion import Request
from worker.engine.encoding import encode_prompt
from worker.engine.model_store import resolve_model
from worker.engine.scripted import is_scripted

SHOWN = 3  # prompts
COUNTED = 500  # prompts whose tokens are counted; the rest is taken to be like them
RULE = "-" * 72


def dry_run(options: RunOptions, note: Callable[[str], None]) -> str:
    """Three prompts as the model will see them, and how much work there is.

    Raises:
        InputError: what the run itself would refuse about the prompts.
    """
    source = open_prompts(options, note)
    options, source = with_requested(options, source, note)
    tokenizer = _tokenizer(options, note)
    lines: list[str] = []
    for record in islice(_good(source), SHOWN):
        lines += [f"{RULE}", f"{record.record_id}: {_described(record, tokenizer, raw=options.raw)}"]
    rows = source.records * options.samples
    lines += [RULE, f"{source.records:,} records × {options.samples:,} = {rows:,} rows in {source.shards:,} part files"]
    if source.bad:
        lines.append(f"{source.bad:,} bad lines become error rows")
    lines += [f"note: {warning}" for warning in source.warnings]
    if tokenizer is not None:
        lines.append(_prompt_tokens(source, tokenizer, options))
    lines.append(f"at most {rows * options.max_tokens:,} tokens to generate ({options.max_tokens:,} per row)")
    lines.append("nothing was started; the same command without --dry-run begins")
    return "\n".join(lines)


def _good(source: PromptSource) -> Iterator[Record]:
    for shard in range(source.shards):
        yield from (record for record in source.read_shard(shard) if record.bad_input is None)


def _tokenizer(options: RunOptions, note: Callable[[str], None]) -> Any:
    """The model's tokenizer, or None where it is not on this machine."""
    model = options.model
    if is_scripted(model):
        return None
    try:
        folder = resolve_model(model, offline=True)
    except ModelError:
        note(f"the model {model} is not on this machine yet: no token counts (specmill model fetch {model})")
        return None
    from mlx_lm.utils import load_tokenizer

    return load_tokenizer(folder, {"trust_remote_code": options.trust_remote_code})


def _encoded(record: Record, tokenizer: Any, *, raw: bool) -> list[int]:
    request = Request(index=0, sample=0, key=0, prompt=record.prompt, messages=record.messages, bad_input=None)
    return encode_prompt(request, tokenizer, raw=raw)


def _described(record: Record, tokenizer: Any, *, raw: bool) -> str:
    if tokenizer is None:
        turns = record.messages or [{"role": "user", "content": str(record.prompt)}]
        return "\n".join(["", *(f"[{turn['role']}] {turn['content']}" for turn in turns)])
    try:
        ids = _encoded(record, tokenizer, raw=raw)
    except RowError as error:
        return f"becomes an error row: {type(error).__name__}: {error}"
    return f"{len(ids):,} tokens\n{tokenizer.decode(ids)}"


def _prompt_tokens(source: PromptSource, tokenizer: Any, options: RunOptions) -> str:
    counts = []
    failed = 0
    for record in islice(_good(source), COUNTED):
        try:
            counts.append(len(_encoded(record, tokenizer, raw=options.raw)))
        except RowError:
            failed += 1
    if not counts:
        return "no prompt can be encoded"
    mean = sum(counts) / len(counts)
    whole = len(counts) + failed + source.bad >= source.records
    total = sum(counts) if whole else round(mean * (source.records - source.bad))
    text = f"{'' if whole else 'about '}{total * options.samples:,} tokens of prompts ({mean:,.1f} on average, longest {max(counts):,})"
    return text + (f"; {failed:,} of the first {len(counts) + failed:,} cannot be encoded" if failed else "")
