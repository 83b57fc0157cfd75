"""`open_prompts`: from what the command line says of the prompts to a source that has been seen whole."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from producer.column_path import ColumnPath
from producer.counted import counted
from producer.hub_prompts import name_of
from producer.origins import Origins
from producer.own_settings import SETTINGS, setting_of
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
    given = name_of(options.prompts)
    name = f"{given} and the others" if options.others else given if len(files) > 1 or given.startswith("hf://") else str(files[0].path)
    if sum(file.path.stat().st_size for file in files if file.path.is_file()) >= LARGE_FILE:
        note(f"reading {name}")
    as_it_is = len(files) == 1 and files[0].seekable and options.sample is None
    spool = None if as_it_is else Spool(files, options.sample, options.seed, options.limit)
    reader = RecordReader(
        plain_text=spool is None and files[0].kind == "text",
        id_column=None if options.id_column is None else ColumnPath.parse(options.id_column),
        prompt_column=None if options.prompt_column is None else ColumnPath.parse(options.prompt_column),
        template=None if options.template is None else PromptTemplate(_template_text(options.template)),
        system=options.system,
        prefix=() if options.few_shot is None else _messages(options.few_shot),
        per_row=tuple(_per_row(text) for text in options.per_row),
        numbers=None if spool is None else spool.numbers,
        spooled=spool is not None,
        origins=Origins() if spool is None else spool.origins,
    )
    path = files[0].path if spool is None else spool.path

    def scan(shard_size: int) -> PromptSource:
        keep_bad = options.on_bad_input == "error-row"
        limit = options.limit if options.sample is None else None  # the sample was taken of the first so many
        return PromptSource.scan(path, reader, shard_size=shard_size, keep_bad=keep_bad, name=name, limit=limit)

    source = scan(options.shard_size or MOST_RECORDS)
    if options.shard_size is None:
        size = default_shard_size(source.records, options.samples, options.slots)
        source = source if size == source.shard_size else scan(size)  # a small file; only now is it known how small
    bad = f", {source.bad:,} of them bad lines that become error rows" if source.bad else ""
    note(f"{name}: {counted(source.records, 'record')}{bad}" + (f" in {len(files)} files" if len(files) > 1 else ""))
    return replace(source, spool=spool)


def with_requested(options: RunOptions, source: PromptSource, note: Callable[[str], None]) -> tuple[RunOptions, PromptSource]:
    """What the lines of a file ask for, where the command line does not say otherwise: alike for the run, or each for itself.

    Returns:
        The options with what all ask for, and the source with what is each record's own.

    Raises:
        InputError: lines that disagree about what a run has one of, a value outside its interval, or a column that no line has.
    """
    for name, path in source.reader.per_row:
        if SETTINGS[name] not in source.requested.values:
            columns = ", ".join(source.columns)
            raise InputError(f"--per-row {name}: no line of {source.name} has a value in {path.text!r}; columns: {columns}")
    columns_of = frozenset(SETTINGS[name] for name, _ in source.reader.per_row)
    if "samples" in columns_of & options.given:
        raise InputError("--per-row n and --n exclude each other; a row whose cell is empty has one completion")
    given = options.given - columns_of  # an option beside its --per-row counts where the cell is empty
    own = source.requested.own(given)
    if own:
        source = source.with_own(own)
        note(f"each row has its own {', '.join(sorted(map(setting_of, own)))}")
        options = replace(options, samples=1) if "samples" in own else options
    wanted = source.requested.wanted(given)
    if not wanted:
        return options, source
    note("from the file: " + ", ".join(f"{option_of(name)} {shown(value)}" for name, value in wanted.items()))
    sampling = {field.name: wanted.pop(field.name) for field in fields(SamplerConfig) if field.name in wanted}
    try:
        return replace(options, sampler=replace(options.sampler, **sampling), **wanted), source  # type: ignore[arg-type]  # checked when read
    except ValueError as error:
        raise InputError(f"{source.name}: {error}") from error


def _per_row(text: str) -> tuple[str, ColumnPath]:
    """The setting and the column of `NAME` or `NAME=COLUMN`."""
    name, _, column = text.partition("=")
    if name not in SETTINGS:
        raise InputError(f"--per-row must name one of {', '.join(SETTINGS)}; received {name!r}")
    return name, ColumnPath.parse(column or name)


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
