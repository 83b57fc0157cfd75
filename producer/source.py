"""`PromptSource`: a prompts file or a spool, read twice: once to check all of it, then shard by shard in any order.

The first pass (`producer.scan`) finds every bad line, duplicate ids, the types of the user's columns, the digest of all records and the
places where shards start. It keeps 8 bytes per record, whatever the records' size. The second (`read_shard`) reads one shard at a time and
makes sure that it still is what the first pass saw.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from producer.column_types import ColumnType
from producer.origins import Origins
from producer.prompt_lines import BOM, Line, open_lines
from producer.record import Record, RecordReader
from producer.requested_options import RequestedOptions
from producer.scan import PROBLEMS_SHOWN, PartScanner, ShardStart, id_hash, records_of
from producer.scan_processes import scan_file
from producer.spool import Spool
from schemas.errors import InputError
from schemas.tables import RESERVED_COLUMNS
from schemas.wire import canonical_json

_FOREIGN = {
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"PAR1": "a Parquet file (a name that ends in .parquet, or --format parquet, says so)",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True)
class PromptSource:
    """A prompts file whose every line has been seen.

    Attributes:
        path: the file.
        reader: how lines become records.
        shard_size: records per shard; the last shard may be short.
        records: number of records; where they ask for different numbers of completions, each counts as many times.
        bad: how many of them are bad lines, kept as error rows.
        digest: sha256 hex over all that the dataset takes from the file: records in order, duplicates, columns in order, and settings
            of their own.
        columns: the user's own columns and their types, in the order of their first appearance.
        has_prompt: whether any record has a `prompt`.
        has_messages: whether any record has `messages`.
        duplicates: row → line that had its id first; such rows are bad lines.
        starts: where each shard starts.
        requested: what the lines ask of the run.
        name: what people call the file.
        limit: records are read up to this many, or None.
        spool: the temporary file that `path` is in, or None; it goes with the source.
        own: the run options that records have of their own.
    """

    path: Path
    reader: RecordReader
    shard_size: int
    records: int
    bad: int
    digest: str
    columns: dict[str, ColumnType]
    has_prompt: bool
    has_messages: bool
    duplicates: dict[int, int]
    starts: list[ShardStart]
    requested: RequestedOptions
    name: str
    limit: int | None
    spool: Spool | None = None
    own: frozenset[str] = frozenset()

    @classmethod
    def scan(
        cls,
        path: Path,
        reader: RecordReader,
        *,
        shard_size: int,
        keep_bad: bool = False,
        name: str | None = None,
        limit: int | None = None,
    ) -> "PromptSource":
        """Read the whole file once.

        Args:
            path: a regular file: JSON objects or plain text, one per line.
            reader: how lines become records.
            shard_size: records per shard, ≥ 1.
            keep_bad: keep bad lines as error rows instead of refusing the file.
            name: what people call the file, where `path` is a spool.
            limit: take the first records only.

        Raises:
            InputError: no such file, no record in it, or bad lines (named by number, the first 20 of them).
        """
        name = name or str(path)
        _check_file(path, reader)
        scan = scan_file(PartScanner(path, reader, shard_size), limit)
        if not scan.ids:
            raise InputError(f"{name} holds no record: it is empty or has blank lines only")
        duplicates, problems = _duplicates(islice(records_of(path, reader), limit), reader.origins, scan.ids)
        bad = scan.bad + len(duplicates)
        if bad and not keep_bad:
            raise InputError(_refusal(name, sorted([*scan.problems, *problems])[:PROBLEMS_SHOWN], bad))
        scan.digest.update(canonical_json([[*sorted(duplicates)], [*scan.columns]]).encode())
        return cls(
            path=path,
            reader=reader,
            shard_size=shard_size,
            records=len(scan.ids),
            bad=bad,
            digest=scan.digest.hexdigest(),
            columns=scan.columns,
            has_prompt=scan.has_prompt or not scan.has_messages,
            has_messages=scan.has_messages,
            duplicates=duplicates,
            starts=scan.starts,
            requested=scan.requested,
            name=name,
            limit=limit,
        )

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.starts)

    @property
    def names(self) -> dict[str, str]:
        """The user's own columns → their names in the dataset; a name that the dataset needs itself becomes `input_NAME`."""
        names: dict[str, str] = {}
        for column in self.columns:
            name = column
            while name in RESERVED_COLUMNS or (name != column and name in self.columns):
                name = f"input_{name}"
            names[column] = name
        return names

    @property
    def warnings(self) -> list[str]:
        """What the user should know about columns that are not kept quite as they are."""
        texts = [name for name, column in self.columns.items() if column.is_json_text]
        said = [f"column {name!r} holds values without a common type; it is kept as JSON text" for name in texts]
        return said + [f"column {old!r} is kept as {new!r}" for old, new in self.names.items() if old != new]

    def with_own(self, options: frozenset[str]) -> "PromptSource":
        """The same source, whose records keep what they ask for in these run options; all of it is read once more.

        With `samples` among them a record stands as many times as it asks for completions, and shards count those.

        Raises:
            InputError: the file is gone.
        """
        own = replace(self, own=options)
        digest, starts, records = hashlib.sha256(bytes.fromhex(self.digest)), [], 0
        entries = own._entries(ShardStart(0, 1, b"", 0))
        while shard := list(islice(entries, self.shard_size)):
            record, line = shard[0]
            told = b"".join([own._told(record) for record, _ in shard])
            digest.update(told)
            checksum = hashlib.blake2b(told, digest_size=8).digest()
            starts.append(ShardStart(line.offset, line.number, checksum, record.row, record.sample or 0))
            records += len(shard)
        return replace(own, digest=digest.hexdigest(), starts=starts, records=records)

    def read_shard(self, shard: int) -> list[Record]:
        """The records of one shard, read from the file; duplicates are marked as bad lines.

        Raises:
            InputError: the file is gone or is not what it was when it was scanned.
        """
        if not 0 <= shard < self.shards:
            raise ValueError(f"shard must be in [0, {self.shards - 1}]; received {shard}")
        count = min(self.shard_size, self.records - shard * self.shard_size)
        digest = hashlib.blake2b(digest_size=8)
        found: list[Record] = []
        start = self.starts[shard]
        for record, _ in islice(self._entries(start), count):
            digest.update(self._told(record))
            found.append(_marked(record, self.duplicates[record.row], self.reader.origins) if record.row in self.duplicates else record)
        if len(found) != count or digest.digest() != start.digest:
            raise InputError(f"{self.name} has changed since this run read it (shard {shard}); put the old file back and run again")
        return found

    def _entries(self, start: ShardStart) -> Iterator[tuple[Record, Line]]:
        """The records from the start of a shard on, with the settings that are their own, as often as they ask to be completed."""
        left = None if self.limit is None else self.limit - start.row
        for record, line in islice(records_of(self.path, self.reader, start.offset, start.line, start.row), left):
            options = {name: value for name, value in record.options.items() if name in self.own}
            mine = record if options == record.options else replace(record, options=options)
            if "samples" not in self.own:
                yield mine, line
                continue
            wanted = options.get("samples", 1)
            assert isinstance(wanted, int)
            for sample in range(start.sample if record.row == start.row else 0, wanted):
                yield replace(mine, sample=sample), line

    def _told(self, record: Record) -> bytes:
        """What the dataset takes of a record."""
        if not self.own:
            return record.canonical()
        return record.canonical() + canonical_json([record.options, record.sample]).encode() + b"\n"  # type: ignore[list-item]  # checked when read


def _check_file(path: Path, reader: RecordReader) -> None:
    """Refuse at a glance what is no text file of one record per line."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file; a prompts file is read twice")
    with open_lines(path) as file:
        start = file.read(4096)
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise InputError(f"{path} is {what}; it must be UTF-8 text, one JSON object or one prompt per line")
    if not reader.plain_text and start.removeprefix(BOM).lstrip().startswith(b"["):
        raise InputError(f"{path} starts with a JSON list; it must hold one JSON object per line (jq -c '.[]' makes it so)")


def _duplicates(
    records: Iterable[tuple[Record, Line]], origins: Origins, ids: "array[int]"
) -> tuple[dict[int, int], list[tuple[int, str]]]:
    """Rows whose id an earlier line has, with that line, and what to say of them; reads the records only when two hashes are equal."""
    hashes = np.sort(np.frombuffer(ids, dtype=np.uint64))
    shared = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    first_lines: dict[str, int] = {}
    found: dict[int, int] = {}
    problems: list[tuple[int, str]] = []
    for record, _ in records if shared else ():
        if id_hash(record.record_id) not in shared:
            continue
        if record.record_id not in first_lines:
            first_lines[record.record_id] = record.line
            continue
        marked = _marked(record, first_lines[record.record_id], origins)
        at = np.searchsorted(hashes, np.uint64(id_hash(marked.record_id)))
        if at < len(hashes) and int(hashes[at]) == id_hash(marked.record_id):
            raise InputError(f"{origins.name(record.line)} needs the id {marked.record_id!r}, which another line has; rename that one")
        found[record.row] = first_lines[record.record_id]
        problems.append((record.line, str(marked.bad_input)))
        problems = problems[:PROBLEMS_SHOWN]
    return found, problems


def _marked(record: Record, first_line: int, origins: Origins) -> Record:
    """A record with somebody else's id, as the bad line that it is."""
    text = f"{origins.name(record.line)}: the record id {record.record_id!r} is that of {origins.name(first_line)} too"
    return replace(record, record_id=f"line-{record.line}", prompt=None, messages=None, bad_input=text)


def _refusal(name: str, problems: list[tuple[int, str]], bad: int) -> str:
    lines = [
        f"{name} has {bad} bad {'line' if bad == 1 else 'lines'}; nothing was started (--on-bad-input error-row keeps them as error rows)"
    ]
    lines += [f"  {text}" for _, text in problems]
    return "\n".join(lines + ([f"  … and {bad - len(problems)} more"] if bad > len(problems) else []))
