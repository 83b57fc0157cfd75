"""`PromptFile`: which files the prompts are in, and of what kind each is."""

import glob
from dataclasses import dataclass
from pathlib import Path

from producer.hub_prompts import fetch_files, hub_url
from schemas.errors import InputError

KINDS = ("jsonl", "text", "csv", "tsv", "parquet")
STANDARD_INPUT = Path("-")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_ARCHIVES = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ": "xz"}
_ARCHIVE_SUFFIXES = (".gz", ".zst", ".zstd", ".bz2", ".xz")


@dataclass(frozen=True)
class PromptFile:
    """One file of prompts.

    Attributes:
        path: where it is; `-` is standard input.
        kind: one of `KINDS`.
        archive: gzip, zstd, bz2, xz, or empty.
    """

    path: Path
    kind: str
    archive: str

    @property
    def seekable(self) -> bool:
        """Whether its lines can be read where they are, in any order."""
        stays = self.path.is_file() or not self.path.exists()  # not so a pipe, such as a shell's <(command)
        return self.path != STANDARD_INPUT and stays and not self.archive and self.kind in ("jsonl", "text")


def find_prompt_files(given: tuple[Path, ...], kind: str | None) -> list[PromptFile]:
    """The files that were named, patterns resolved and in the order of their names.

    Args:
        given: files, patterns such as `data/*.jsonl`, `hf://datasets/…` on the hub, or `-`.
        kind: what they all are, or None to tell from their names; what no name tells is JSON lines.

    Raises:
        InputError: a pattern that matches nothing, or standard input twice.
    """
    paths = [path for one in given for path in _expanded(one)]
    if paths.count(STANDARD_INPUT) > 1:
        raise InputError("standard input can be read once; received '-' twice")
    return [PromptFile(path, kind or _kind(path), _archive(path)) for path in paths]


def _expanded(path: Path) -> list[Path]:
    if (url := hub_url(path)) is not None:
        return fetch_files(url, tuple(_SUFFIXES) + _ARCHIVE_SUFFIXES)
    if path == STANDARD_INPUT or path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())  # noqa: PTH207 # absolute patterns
    if not found:
        raise InputError(f"no file matches {path}")
    return found


def _kind(path: Path) -> str:
    name = path.with_suffix("") if path.suffix.lower() in _ARCHIVE_SUFFIXES else path
    return _SUFFIXES.get(name.suffix.lower(), "jsonl")


def _archive(path: Path) -> str:
    if path == STANDARD_INPUT or not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return next((name for magic, name in _ARCHIVES.items() if start.startswith(magic)), "")
