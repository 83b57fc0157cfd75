"""The lines of a prompts file: read whole or from a place on, each with its number and offset."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from producer.record import MAX_LINE_BYTES
from schemas.errors import InputError

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """A line that holds a record.

    Attributes:
        offset: of its first byte.
        number: from 1; blank lines count.
        content: its bytes without the line end, or None for one that is too long to be read.
    """

    offset: int
    number: int
    content: bytes | None


def open_lines(path: Path) -> BinaryIO:
    """The file, for reading bytes.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.open("rb", buffering=1 << 16)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def lines_of(path: Path, offset: int = 0, number: int = 1) -> Iterator[Line]:
    """The file's lines, from the one at `offset` on; blank ones are left out.

    Args:
        path: the file.
        offset: where the first line begins, in bytes.
        number: that line's number.
    """
    with open_lines(path) as file:
        file.seek(offset)
        for content, size in short_lines(file, whole=offset == 0):
            if content is None or content.strip():
                yield Line(offset, number, content)
            offset += size
            number += 1


def short_lines(file: BinaryIO, *, whole: bool = True) -> Iterator[tuple[bytes | None, int]]:
    """Lines without their ends, None for one that is too long, and how many bytes each takes up.

    Args:
        file: read from where it stands.
        whole: it stands at its beginning, where there may be a byte order mark.
    """
    mark = BOM if whole else b""
    while data := file.readline(MAX_LINE_BYTES + 2):
        size = len(data)
        content: bytes | None = data.removesuffix(b"\n").removesuffix(b"\r")
        if len(content or b"") > MAX_LINE_BYTES:
            content = None
            while not data.endswith(b"\n") and (data := file.readline(MAX_LINE_BYTES)):
                size += len(data)
        yield content and content.removeprefix(mark), size
        mark = b""
