"""`open_prompts`: from what the command line says of the prompts to a source that has been seen whole."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from producer.column_path import ColumnPath
from producer.origins import Origins
from producer.prompt_files import find_prompt_files
from producer.prompt_template import PromptTemplate
from producer.record import Message, RecordReader, checked_messages
from producer.requested_options import option_of, shown
from producer.run_options import RunOptions
from producer.shard_size import MOST_RECORDS, default_shard_size
from producer.source import PromptSource
from producer.spool import Spool
from schemas.errors import InputError
from schemas.sampler import SamplerConfig

LARGE_FILE = 50_000_000  # bytes; from here on reading takes long enough to say so


def open_prompts(options: RunOptions, note: Callable[[str], None]) -> PromptSource:
    """Read all prompts once; what cannot be read in any order is copied into a temporary file first.

    Args:
        options: what was asked for.
        note: receives a line per step that takes a while, and one that says what was found.

    Raises:
        InputError: a file that cannot be read, or bad lines.
    """
    files = find_prompt_files((options.prompts, *options.others), options.format)
    name = str(files[0].path) if len(files) == 1 else f"{options.prompts} and the others" if options.others else str(options.prompts)
    if sum(file.path.stat().st_size for file in files if file.path.is_file()) >= LARGE_FILE:
        note(f"reading {name}")
    spool = None if len(files) == 1 and files[0].seekable else Spool(files)
    reader = RecordReader(
        plain_text=spool is None and files[0].kind == "text",
        id_column=None if options.id_column is None else ColumnPath.parse(options.id_column),
        prompt_column=None if options.prompt_column is None else ColumnPath.parse(options.prompt_column),
        template=None if options.template is None else PromptTemplate(_template_text(options.template)),
        system=options.system,
        prefix=() if options.few_shot is None else _messages(options.few_shot),
        spooled=spool is not None,
        origins=Origins() if spool is None else spool.origins,
    )
    path = files[0].path if spool is None else spool.path

    def scan(shard_size: int) -> PromptSource:
        keep_bad = options.on_bad_input == "error-row"
        return PromptSource.scan(path, reader, shard_size=shard_size, keep_bad=keep_bad, name=name, limit=options.limit)

    source = scan(options.shard_size or MOST_RECORDS)
    if options.shard_size is None:
        size = default_shard_size(source.records, options.samples, options.slots)
        source = source if size == source.shard_size else scan(size)  # a small file; only now is it known how small
    bad = f", {source.bad:,} of them bad lines that become error rows" if source.bad else ""
    note(f"{name}: {source.records:,} records{bad}" + (f" in {len(files)} files" if len(files) > 1 else ""))
    return replace(source, spool=spool)


def with_requested(options: RunOptions, source: PromptSource, note: Callable[[str], None]) -> RunOptions:
    """The options with what an OpenAI batch file asks for, where the command line does not say otherwise.

    Raises:
        InputError: lines that ask for different things, or a value outside its interval.
    """
    wanted = source.requested.wanted(options.given)
    if not wanted:
        return options
    note("from the file: " + ", ".join(f"{option_of(name)} {shown(value)}" for name, value in wanted.items()))
    sampling = {field.name: wanted.pop(field.name) for field in fields(SamplerConfig) if field.name in wanted}
    try:
        return replace(options, sampler=replace(options.sampler, **sampling), **wanted)  # type: ignore[arg-type]  # checked when read
    except ValueError as error:
        raise InputError(f"{source.name}: {error}") from error


def _messages(path: Path) -> tuple[Message, ...]:
    """The messages of a file, a JSON object with role and content per line."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return tuple(checked_messages([json.loads(line) for line in lines], str(path)))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read the messages of {path}: {error}") from error


def _template_text(given: str) -> str:
    """The template itself, or what the file behind `@` holds."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the template {given[1:]}: {error}") from error
