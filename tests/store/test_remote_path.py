"""Places in an object store: what a location may say, and files that are whole or absent."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from s3_server import BUCKET, SECRET_KEY, objects, uploads

from schemas.errors import InputError, LandingError
from worker.landing import written_whole
from worker.remote_path import Place, RemotePath, is_below, look_through, place_of, size_of

LARGE = 12_000_000  # bytes: more than one part of a multipart upload


def remote(text: str = f"s3://{BUCKET}/out") -> RemotePath:
    place = place_of(text)
    assert isinstance(place, RemotePath)
    return place


def write(path: Place, data: bytes) -> None:
    with written_whole(path) as file:
        file.write(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"s3://key:{SECRET_KEY}@fleet/out", "come from the environment"),
        (f"s3://fleet/out?secret_key={SECRET_KEY}", "come from the environment"),
        ("s3://fleet/out#x", "come from the environment"),
        ("s3://fleet/out/../other", "without empty, '.' and '..' parts"),
        ("s3://fleet//out", "without empty"),
        ("s3://", "without empty"),
        ("s3://fleet", r"must name a folder in the bucket, s3://fleet/NAME"),
        ("nosuchscheme://a/b", "cannot be opened"),
    ],
)
def test_a_location_that_is_refused_says_why_and_shows_no_secret(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        place_of(text)
    assert SECRET_KEY not in str(caught.value)


def test_a_location_without_a_scheme_is_a_path() -> None:
    assert place_of("a/b") == Path("a/b")
    assert place_of("file:///a/b") == Path("/a/b")


def test_it_answers_as_a_path_does(s3: Any) -> None:
    out = remote()
    assert not out.exists()
    assert list(out.iterdir()) == []
    assert list((out / "data").glob("*")) == []
    with pytest.raises(FileNotFoundError):
        (out / "manifest.json").read_bytes()
    write(out / "data" / "part-1.parquet", b"one")
    write(out / "data" / "part-0.parquet", b"zero")
    write(out / "notes.txt", b"n")
    assert out.is_dir()
    assert not (out / "notes.txt").is_dir()
    assert sorted(path.name for path in out.iterdir()) == ["data", "notes.txt"]
    assert [str(path) for path in sorted((out / "data").glob("part-*.parquet"))] == [
        f"s3://{BUCKET}/out/data/part-0.parquet",
        f"s3://{BUCKET}/out/data/part-1.parquet",
    ]
    assert size_of(out / "data" / "part-0.parquet") == 4
    assert list(look_through(sorted((out / "data").iterdir()), size_of)) == [4, 3]
    (out / "notes.txt").unlink()
    (out / "notes.txt").unlink(missing_ok=True)
    assert not (out / "notes.txt").exists()


def test_a_file_is_replaced_whole_however_large(s3: Any) -> None:
    path = remote() / "file"
    for data in (b"a" * LARGE, b"b", b"c" * LARGE):
        write(path, data)
        assert objects(s3) == {"out/file": data}
    assert uploads(s3) == []


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_block_that_raises_leaves_nothing(s3: Any, size: int) -> None:
    def fail() -> None:
        with written_whole(remote() / "file") as file:
            file.write(b"a" * size)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert objects(s3) == {}
    assert uploads(s3) == []


def test_a_store_that_refuses_is_one_error(s3: Any) -> None:
    with pytest.raises(LandingError, match=r"cannot write s3://nobucket/out/file: .*") as caught:
        write(remote("s3://nobucket/out") / "file", b"a" * LARGE)
    assert SECRET_KEY not in str(caught.value)


def test_what_a_killed_writer_leaves_is_invisible_and_can_be_dropped(s3: Any) -> None:
    """The writer dies in the middle of its upload."""
    script = f"""
import os, signal
from worker.remote_path import place_of
stream = place_of("s3://{BUCKET}/out/data/part-00000.parquet").filesystem.open_output_stream("{BUCKET}/out/data/part-00000.parquet")
stream.write(b"a" * {LARGE})
os.kill(os.getpid(), signal.SIGKILL)
"""
    writer = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert writer.returncode == -signal.SIGKILL
    s3.create_multipart_upload(Bucket=BUCKET, Key="out-of-somebody-else/file")
    assert objects(s3) == {}
    assert len(uploads(s3)) == 2
    assert remote().drop_uploads() == ["out/data/part-00000.parquet"]
    assert uploads(s3) == ["out-of-somebody-else/file"]
    assert remote(f"s3://{BUCKET}/out-of-somebody-else").drop_uploads() == ["out-of-somebody-else/file"]


def test_what_lies_below_a_root() -> None:
    root = RemotePath("s3", "bucket/a", None)
    assert is_below(root / "b", root)
    assert is_below(root, root)
    assert not is_below(RemotePath("s3", "bucket/ab", None), root)
    assert not is_below(RemotePath("gs", "bucket/a/b", None), root)
    assert not is_below(Path("bucket/a/b"), root)


def test_a_file_system_that_only_fsspec_opens_shows_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = remote(f"local://{tmp_path}/out")
    out.mkdir(parents=True, exist_ok=True)
    for data in (b"first", b"second"):
        write(out / "manifest.json", data)
        assert (tmp_path / "out" / "manifest.json").read_bytes() == data
    assert [path.name for path in out.iterdir()] == ["manifest.json"]

    def broken(*_: object, **__: object) -> None:
        raise OSError("cannot move")

    filesystem = out.filesystem
    monkeypatch.setattr(filesystem.handler.fs, "mv", broken)
    with pytest.raises(LandingError, match="cannot move"):
        write(out / "manifest.json", b"third")
    monkeypatch.undo()
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    assert (tmp_path / "out" / "manifest.json").read_bytes() == b"second"
