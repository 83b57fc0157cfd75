"""`RemotePath`: a place in an object store, or on another file system that pyarrow or fsspec opens, where the code says `Path` otherwise.

A location is a scheme and a path, `s3://bucket/folder`. Who we are there and how it is reached comes from the environment of each machine
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `AWS_REGION`, a profile, a role …), never from the location: it travels to workers, into cards
and into logs.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from schemas.errors import InputError
from worker import s3_uploads

OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes where a file is there once it is closed, and not before; elsewhere it is written under another name and moved."""
PARALLEL = 16  # requests at once where a whole dataset is looked through
CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 60.0
ATTEMPTS = 8  # per request, the pause between two doubling up to 20 s: a minute or so

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, order=True)
class RemotePath:
    """One file or folder there; what it shares with `Path` means the same.

    Attributes:
        scheme: `s3`, `gs`, …
        key: bucket and path as the file system knows them, without a slash at the end.
        filesystem: what opens it.
    """

    scheme: str
    key: str
    filesystem: fs.FileSystem = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.scheme, f"{self.key}/{name}", self.filesystem)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.key.rpartition("/")[2]

    def with_name(self, name: str) -> "RemotePath":
        """Its neighbour of that name."""
        return RemotePath(self.scheme, f"{self.key.rpartition('/')[0]}/{name}", self.filesystem)

    def resolve(self) -> "RemotePath":
        """Itself: there are no links."""
        return self

    def exists(self) -> bool:
        """Whether there is a file, or a folder that holds something.

        Raises:
            OSError: the store cannot be asked; so everywhere below.
        """
        return self._kind() is not fs.FileType.NotFound

    def is_dir(self) -> bool:
        """Whether there is a folder that holds something."""
        return self._kind() is fs.FileType.Directory

    def size(self) -> int:
        """In bytes, of a file."""
        return self._info().size or 0

    def iterdir(self) -> Iterator["RemotePath"]:
        """What the folder holds; nothing when there is none."""
        for info in self.filesystem.get_file_info(fs.FileSelector(self.key, allow_not_found=True)):
            yield self / info.path.rstrip("/").rpartition("/")[2]

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """What the folder itself holds under such a name."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002 # Path's signature
        """Make the folder where there is such a thing."""
        if self.scheme not in OBJECT_STORES:
            self.filesystem.create_dir(self.key, recursive=True)

    def open_input(self) -> pa.NativeFile:
        """The file for reading anywhere in it."""
        return self.filesystem.open_input_file(self.key)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self.filesystem.open_input_stream(self.key) as file:
            data: bytes = file.read()
        return data

    def rmdir(self) -> None:
        """Remove an empty folder. What pyarrow removes leaves an empty object that stands for the folder around it: `bucket/folder/`."""
        self.filesystem.delete_dir(self.key)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""
        if missing_ok and not self.exists():
            return
        self.filesystem.delete_file(self.key)

    def write_whole(self, data: pa.Buffer, temporary: str) -> None:
        """Write the file, whole or not at all, replacing what has the name.

        Args:
            data: the contents. They are there before the file is opened, because pyarrow completes an object that it is not told to drop.
            temporary: the name until then, where the store shows files that are not finished.
        """
        whole = self.scheme in OBJECT_STORES
        path = self if whole else self.with_name(temporary)
        try:
            with self.filesystem.open_output_stream(path.key) as file:
                file.write(data)
            if not whole:
                self.filesystem.move(path.key, self.key)
        except OSError:
            with contextlib.suppress(OSError):
                if not whole:
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.drop_uploads()
            raise

    def drop_uploads(self) -> list[str]:
        """End the uploads of this file, or below this folder, that nobody will complete: what a killed writer leaves in S3.

        Returns:
            Their keys; none where boto3 is not installed or there is no such thing.
        """
        return s3_uploads.drop(self.key) if self.scheme == "s3" else []

    def _kind(self) -> fs.FileType:
        return self._info().type

    def _info(self) -> fs.FileInfo:
        return self.filesystem.get_file_info(self.key)


Place = Path | RemotePath
"""Where a dataset lies."""


def place_of(text: str) -> Place:
    """The place that a location names: a path of this machine, or `scheme://…`.

    Raises:
        InputError: a location that holds more than scheme and path, leaves its folder, or that nothing here opens.
    """
    if "://" not in text:
        return Path(text)
    scheme, shown = text.partition("://")[0], text.rpartition("@")[2].partition("?")[0]
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            f"{scheme}://…{shown[-40:]}: a location is a scheme and a path alone; keys, endpoint and region come from the environment "
            "(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION, …)"
        )
    path = text.partition("://")[2].rstrip("/")
    if scheme == "file":
        return Path(path)
    if any(name in ("", ".", "..") for name in path.lstrip("/").split("/")):
        raise InputError(f"{text} must be scheme://bucket/folder without empty, '.' and '..' parts")
    if scheme in OBJECT_STORES and "/" not in path:
        raise InputError(f"{text} must name a folder in the bucket, {text.rstrip('/')}/NAME")
    try:
        return RemotePath(scheme, path, filesystem_of(scheme, path.partition("/")[0]))
    except (ValueError, OSError, ImportError, pa.ArrowException) as error:
        raise InputError(f"{text} cannot be opened: {error}") from error


def is_below(place: Place, root: Place) -> bool:
    """Whether a place is `root` or lies in it; links are followed."""
    if isinstance(place, RemotePath) and isinstance(root, RemotePath):
        return place.scheme == root.scheme and f"{place.key}/".startswith(f"{root.key}/")
    return isinstance(place, Path) and isinstance(root, Path) and place.resolve().is_relative_to(root.resolve())


def parquet_source(path: Place) -> Path | pa.NativeFile:
    """What pyarrow's Parquet readers take.

    Raises:
        OSError: it is not there.
    """
    return path.open_input() if isinstance(path, RemotePath) else path


def listed(folder: Place, pattern: str) -> list[Place]:
    """What a folder itself holds under such a name, in order; nothing where there is no such folder."""
    return sorted(folder.glob(pattern), key=lambda path: path.name)


def size_of(path: Place) -> int:
    """A file's size in bytes."""
    return path.size() if isinstance(path, RemotePath) else path.stat().st_size


def look_through(paths: Iterable[Place], look: Callable[[Place], U]) -> Iterator[U]:
    """`look(path)` of each, in order; of remote ones some at once, because each waits for an answer."""
    waiting = iter(paths)
    with ThreadPoolExecutor(PARALLEL) as pool:
        while some := list(islice(waiting, PARALLEL)):
            yield from map(look, some) if isinstance(some[0], Path) else pool.map(look, some)


@functools.lru_cache
def filesystem_of(scheme: str, bucket: str) -> fs.FileSystem:
    """What opens a scheme; one per bucket, because a bucket has its region."""
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return fs.S3FileSystem(
            endpoint_override=endpoint,
            region=region or (None if endpoint else fs.resolve_s3_region(bucket)),
            connect_timeout=CONNECT_SECONDS,
            request_timeout=REQUEST_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            allow_delayed_open=True,  # a file of a few megabytes is one request
        )
    if scheme in (*OBJECT_STORES, "hdfs", "viewfs"):
        filesystem, _ = fs.FileSystem.from_uri(f"{scheme}://{bucket}")
        return filesystem
    import fsspec

    handler: Any = fs.FSSpecHandler(fsspec.filesystem(scheme))
    return fs.PyFileSystem(handler)
