"""`Scan`: what one pass over records gathers, part by part; parts of a large file are read by several processes at once."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from producer.column_types import ColumnType
from producer.prompt_lines import Line, lines_of
from producer.record import Record, RecordReader
from producer.requested_options import RequestedOptions
from schemas.errors import InputError

PROBLEMS_SHOWN = 20
MAX_COLUMNS = 1000
PART_BYTES = 256 * 1024  # about so much is read at a time, and held


@dataclass(frozen=True)
class ShardStart:
    """Where a shard starts.

    Attributes:
        offset: of its first record's line, in bytes.
        line: number of that line.
        digest: of the shard's canonical records, 8 bytes.
        row: number of its first record.
        sample: which of that record's completions it begins with, where records ask for different numbers of them.
    """

    offset: int
    line: int
    digest: bytes
    row: int
    sample: int = 0


@dataclass(frozen=True)
class Part:
    """Consecutive records that one process reads; it begins with a shard.

    Attributes:
        row: number of its first record.
        records: how many.
        offset: of the first record's line, in bytes.
        line: number of that line.
    """

    row: int
    records: int
    offset: int
    line: int


@dataclass
class Scan:
    """What has been seen of some consecutive records.

    Attributes:
        canonical: the canonical records, a shard each.
        starts: where each shard starts.
        ids: a 64-bit hash of every record id, in order.
        columns: the user's own columns and their types, in the order of their first appearance.
        column_lines: column → number of the line that had it first.
        requests: what the lines ask of the run, with the line that begins to ask for it.
        problems: number of the line and what is wrong with it, for the first bad lines.
        bad: how many bad lines.
        has_prompt: whether any record has a `prompt`.
        has_messages: whether any record has `messages`.
    """

    canonical: list[bytes] = field(default_factory=list)
    starts: list[ShardStart] = field(default_factory=list)
    ids: "array[int]" = field(default_factory=lambda: array("Q"))
    columns: dict[str, ColumnType] = field(default_factory=dict)
    column_lines: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[int, dict[str, object]]] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    bad: int = 0
    has_prompt: bool = False
    has_messages: bool = False

    def see_shard(self, records: list[tuple[Record, Line]]) -> None:
        """Take in the records of one shard."""
        canonical = b"".join([record.canonical() for record, _ in records])
        record, first = records[0]
        self.canonical.append(canonical)
        self.starts.append(ShardStart(first.offset, first.number, hashlib.blake2b(canonical, digest_size=8).digest(), record.row))
        for record, _ in records:
            self._see(record)

    def _see(self, record: Record) -> None:
        self.ids.append(id_hash(record.record_id))
        self.has_prompt |= record.prompt is not None
        self.has_messages |= record.messages is not None
        for name, value in record.own.items():
            if name not in self.columns:
                self.columns[name] = ColumnType()
                self.column_lines[name] = record.line
            self.columns[name].see(value)
        if record.bad_input is None:
            if not self.requests or self.requests[-1][1] != record.options:
                self.requests.append((record.line, record.options))
        else:
            self.bad += 1
            if len(self.problems) < PROBLEMS_SHOWN:
                self.problems.append((record.line, record.bad_input))


class WholeScan:
    """Scans of consecutive parts, joined.

    Attributes are those of `Scan`; `digest` is over the canonical records, which are not kept, and `requested` over their requests.
    """

    def __init__(self, reader: RecordReader) -> None:
        self._origins = reader.origins
        self.digest = hashlib.sha256()
        self.starts: list[ShardStart] = []
        self.ids: array[int] = array("Q")
        self.columns: dict[str, ColumnType] = {}
        self.requested = RequestedOptions()
        self.problems: list[tuple[int, str]] = []
        self.bad = 0
        self.has_prompt = False
        self.has_messages = False

    def add(self, part: Scan) -> None:
        """Join the next part.

        Raises:
            InputError: more columns than a table should have.
        """
        for canonical in part.canonical:
            self.digest.update(canonical)
        self.starts += part.starts
        self.ids += part.ids
        for name, column in part.columns.items():
            if name in self.columns:
                self.columns[name].join(column)
                continue
            if len(self.columns) == MAX_COLUMNS:
                where = self._origins.name(part.column_lines[name])
                raise InputError(f"{where}: column {name!r} is one more than {MAX_COLUMNS}; put such keys into one nested object")
            self.columns[name] = column
        for line, options in part.requests:
            self.requested.see(self._origins.name(line), options)
        self.problems = [*self.problems, *part.problems][:PROBLEMS_SHOWN]
        self.bad += part.bad
        self.has_prompt |= part.has_prompt
        self.has_messages |= part.has_messages


@dataclass(frozen=True)
class PartScanner:
    """Reads parts of one file, in any process.

    Attributes:
        path: the file.
        reader: how lines become records.
        shard_size: records per shard.
    """

    path: Path
    reader: RecordReader
    shard_size: int

    def parts(self, limit: int | None) -> Iterator[Part]:
        """The whole file in parts of whole shards, or its first records.

        Args:
            limit: how many records, or None for all.
        """
        first: Line | None = None
        row = end = 0
        for end, line in enumerate(islice(lines_of(self.path), limit)):
            if first is None:
                first = line
            elif end % self.shard_size == 0 and line.offset - first.offset >= PART_BYTES:
                yield Part(row, end - row, first.offset, first.number)
                row, first = end, line
        if first is not None:
            yield Part(row, end + 1 - row, first.offset, first.number)

    def scan(self, part: Part) -> Scan:
        """Read one part."""
        scan = Scan()
        records = islice(records_of(self.path, self.reader, part.offset, part.line, part.row), part.records)
        while shard := list(islice(records, self.shard_size)):
            scan.see_shard(shard)
        return scan


def records_of(path: Path, reader: RecordReader, offset: int = 0, line: int = 1, row: int = 0) -> Iterator[tuple[Record, Line]]:
    """The file's records and their lines, from a place on.

    Args:
        path: the file.
        reader: how lines become records.
        offset: where the first record's line begins, in bytes.
        line: that line's number.
        row: that record's number.
    """
    for number, found in enumerate(lines_of(path, offset, line), start=row):
        yield reader.read(found.content, number, found.number), found


def id_hash(record_id: str) -> int:
    """64 bits of a record id."""
    return int.from_bytes(hashlib.blake2b(record_id.encode(), digest_size=8).digest(), "little")
