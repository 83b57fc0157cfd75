"""`Spool`: prompts that cannot be read in any order where they are (archives, tables, standard input, several files) as one file of lines.

Each line of the spool is a space and one JSON object, or `!` and why a line of the input cannot become one. Blank lines stay, so that
numbers of lines are those of the input.
"""

import bz2
import csv
import gzip
import heapq
import io
import itertools
import json
import lzma
import shutil
import sys
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from producer.origins import Origin, Origins
from producer.prompt_files import STANDARD_INPUT, PromptFile
from producer.prompt_lines import short_lines
from producer.record import MAX_LINE_BYTES
from producer.table_rows import parquet_rows
from schemas.errors import InputError

CONTENT, PROBLEM = b" ", b"!"


class Spool:
    """A temporary file that goes when the spool does.

    Attributes:
        path: the file.
        origins: what its lines are called.
        numbers: of the records that it holds, among those of the files; None where it holds all of them.
    """

    def __init__(self, files: list[PromptFile], sample: int | None = None, seed: int = 0, limit: int | None = None) -> None:
        """Read all files once, in order.

        Args:
            files: the files.
            sample: hold so many records, chosen at random and in their order; None holds all.
            seed: of that choice.
            limit: choose among the first so many.

        Raises:
            InputError: a file that cannot be read, or is not of its kind; the message names it.
        """
        folder = tempfile.mkdtemp(prefix="specmill-")
        self._finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / "prompts.jsonl"
        origins: list[Origin] = []
        line = 1
        with self.path.open("wb") as spool:
            for file in files:
                unit = "line" if file.kind in ("jsonl", "text") else "row"
                origins.append(Origin(line, str(file.path) if len(files) > 1 else "", unit))
                for content in _lines(file):
                    spool.write(content + b"\n")
                    line += 1
        self.origins = Origins(tuple(origins))
        self.numbers = None if sample is None else self._keep(sample, seed, limit)

    def _keep(self, sample: int, seed: int, limit: int | None) -> "array[int]":
        """Blank the lines of all records but a random sample; returns the numbers of those that stay."""
        with self.path.open("rb") as whole:
            total = sum(1 for line in whole if line.strip())
        total = total if limit is None else min(total, limit)
        key = seed.to_bytes(8, "little")
        chosen = heapq.nsmallest(sample, range(total), key=lambda number: blake2b(number.to_bytes(8, "little"), key=key).digest())
        kept, number = set(chosen), 0
        whole_path = self.path.rename(self.path.with_suffix(".all"))
        with whole_path.open("rb") as whole, self.path.open("wb") as spool:
            for line in whole:
                held = bool(line.strip())
                spool.write(line if held and number in kept else b"\n")
                number += held
        whole_path.unlink()
        return array("q", sorted(chosen))

    def close(self) -> None:
        """Remove the file."""
        self._finalizer()


def _lines(file: PromptFile) -> Iterator[bytes]:
    """The spool's lines for one file."""
    readers: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
        "jsonl": _json_lines,
        "text": _text_lines,
        "csv": lambda data: _csv_lines(data, ","),
        "tsv": lambda data: _csv_lines(data, "\t"),
        "parquet": lambda data: map(_object, parquet_rows(data)),
    }
    with ExitStack() as stack:
        try:
            yield from readers[file.kind](_opened(file, stack))
        except InputError as error:
            raise InputError(f"{_shown(file)}: {error}") from error
        except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
            raise InputError(f"{_shown(file)} is damaged or not what its name says: {error}") from error
        except UnicodeError as error:
            raise InputError(f"{_shown(file)} holds text that is not UTF-8: {error}") from error
        except OSError as error:
            raise InputError(f"cannot read {_shown(file)}: {error.strerror or error}") from error


def _opened(file: PromptFile, stack: ExitStack) -> BinaryIO:
    if file.path == STANDARD_INPUT:
        # Archives and tables need to be sought in, and a table's kind is told by --format.
        return sys.stdin.buffer if file.kind != "parquet" else io.BytesIO(sys.stdin.buffer.read())
    if file.path.exists() and not file.path.is_file() and not file.path.is_fifo():
        raise InputError("is not a file")
    raw = stack.enter_context(file.path.open("rb"))
    if not file.archive:
        return raw
    openers: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, "zstd": _open_zstd}
    opened = stack.enter_context(openers[file.archive](raw))
    return cast(BinaryIO, io.BytesIO(opened.read()) if file.kind == "parquet" else opened)


def _open_zstd(raw: BinaryIO) -> io.BufferedReader:
    return io.BufferedReader(cast(Any, _Readable(pa.CompressedInputStream(raw, "zstd"))))


class _Readable(io.RawIOBase):
    """An Arrow input stream as Python's `io` knows it, so that it can be buffered and read by lines."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _json_lines(data: BinaryIO) -> Iterator[bytes]:
    for number, (line, _) in enumerate(short_lines(data)):
        if line is not None and number == 0:
            if line.lstrip().startswith(b"["):
                raise InputError("starts with a JSON list; it must hold one JSON object per line (jq -c '.[]' makes it so)")
            if line.startswith(b"PAR1"):
                raise InputError("is a Parquet file; --format parquet, or a name that ends in .parquet, says so")
        yield CONTENT + line if line is not None else PROBLEM + _too_long()


def _text_lines(data: BinaryIO) -> Iterator[bytes]:
    for line, _ in short_lines(data):
        if line is None:
            yield PROBLEM + _too_long()
        elif not line.strip():
            yield CONTENT
        else:
            try:
                yield _object({"prompt": line.decode()})
            except UnicodeDecodeError as error:
                yield PROBLEM + f"not UTF-8 text (byte {error.start + 1})".encode()


def _csv_lines(data: BinaryIO, delimiter: str) -> Iterator[bytes]:
    """Rows of a table with a header; every cell is text, and an empty one is null."""
    csv.field_size_limit(MAX_LINE_BYTES)
    text = io.TextIOWrapper(data, encoding="utf-8-sig", newline="")
    at = 1
    try:
        first = text.readline()
        if delimiter == "," and "," not in first and ";" in first:
            delimiter = ";"
        reader = csv.reader(itertools.chain([first] if first else [], text), delimiter=delimiter, strict=True)
        header = next((cells for cells in reader if cells), None)
        if header is None:
            raise InputError("is empty; its first line must name the columns")
        _check_header(header)
        at = reader.line_num + 1
        for cells in reader:
            at = reader.line_num + 1
            if len(cells) == len(header):
                yield _object({name: cell or None for name, cell in zip(header, cells, strict=True)})
            elif cells:
                yield PROBLEM + f"has {len(cells)} cells, the header {len(header)}".encode()
    except csv.Error as error:
        raise InputError(f"the row that begins in line {at}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text, in line {at} or behind it ({error.reason})") from error
    finally:
        text.detach()


def _check_header(header: list[str]) -> None:
    for name in header:
        if not name.strip():
            raise InputError(f"every column needs a name in the first line; column {header.index(name) + 1} has none")
        if header.count(name) > 1:
            raise InputError(f"the column {name!r} stands twice in the first line")


def _object(row: dict[str, Any]) -> bytes:
    line = json.dumps(row, ensure_ascii=False).encode()
    return CONTENT + line if len(line) < MAX_LINE_BYTES else PROBLEM + _too_long()


def _too_long() -> bytes:
    return f"longer than {MAX_LINE_BYTES // 2**20} MiB".encode()


def _shown(file: PromptFile) -> str:
    return "standard input" if file.path == STANDARD_INPUT else str(file.path)
