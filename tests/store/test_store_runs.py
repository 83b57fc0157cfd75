"""Runs whose dataset lies in an object store: the same files as on a disk, whoever lands them and whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chaos_fleet import MARK, poll, processes
from click.testing import CliRunner
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, objects, uploads

from producer.broker import EmbeddedBroker
from producer.cli import main
from producer.local_workers import LocalWorkers, WorkerSettings
from worker import remote_path
from worker.landing import PartRecord, land_part
from worker.ledger import Ledger
from worker.redis_client import make_client
from worker.remote_path import place_of
from worker.shared_folder import SharedFolder

OUT = f"s3://{BUCKET}/sets/out"
FILES = ["README.md", *(f"data/part-0000{shard}.parquet" for shard in range(4)), "log/attempts-0000.parquet", "manifest.json"]
LEASE_SECONDS = 3.0


MODEL = "scripted:seconds=0.2"


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("".join(f"prompt {index}.\n" for index in range(12)))
    return path


@pytest.fixture(scope="module")
def plain(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run into a folder."""
    out = tmp_path_factory.mktemp("plain") / "out"
    specmill("run", *words(prompts, out), "--quiet")
    return out


@pytest.fixture
def stored(s3: Any, plain: Path) -> None:
    """The same dataset in the store, as it is there when it was made there."""
    for path in sorted(path for path in plain.rglob("*") if path.is_file()):
        s3.put_object(Bucket=BUCKET, Key=f"sets/out/{path.relative_to(plain)}", Body=path.read_bytes())


@pytest.fixture(autouse=True)
def _cache(own_cache: Path) -> None:
    """No test leaves anything in the user's cache."""


def specmill(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception}"
    return result.output


def words(prompts: Path, out: object, **more: object) -> list[object]:
    options = {"model": MODEL, "depth": 0, "shard-size": 3, "max-tokens": 8, "out": out, **more}
    return [prompts, *(word for name, value in options.items() for word in (f"--{name}", value))]


def names(s3: Any, prefix: str = "sets/out/") -> list[str]:
    """What lies in the folder, but for the empty object that may stand for the folder itself."""
    return sorted(key.removeprefix(prefix) for key in objects(s3, prefix) if key != prefix)


def parts(s3: Any, prefix: str = "sets/out/") -> dict[str, bytes]:
    return {key.removeprefix(prefix): data for key, data in objects(s3, prefix).items() if "/data/" in key}


def local_parts(out: Path) -> dict[str, bytes]:
    return {f"data/{path.name}": path.read_bytes() for path in (out / "data").iterdir()}


def manifest(s3: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(objects(s3)["sets/out/manifest.json"])
    return found


def test_a_run_lands_in_the_store_and_every_command_reads_it_there(
    s3: Any, prompts: Path, plain: Path, tmp_path: Path, own_cache: Path
) -> None:
    said = specmill("run", *words(prompts, OUT, workers=2), "--quiet")
    assert f"{OUT}: 12 rows ok" in said
    assert names(s3) == FILES
    assert parts(s3) == local_parts(plain)
    assert uploads(s3) == []
    assert manifest(s3)["status"] == "complete"
    assert all(shard["backend"]["chip"] != "-" for shard in manifest(s3)["shards"])
    everything = b"".join(objects(s3).values()) + said.encode()
    assert SECRET_KEY.encode() not in everything
    assert ACCESS_KEY.encode() not in everything
    assert not (own_cache / "sessions").exists() or list((own_cache / "sessions").iterdir()) == []
    before = objects(s3)
    specmill("run", *words(prompts, OUT), "--quiet")
    assert objects(s3) == before
    # What looks at a dataset.
    assert "12 rows ok" in specmill("report", OUT)
    assert "report.html" in names(s3)
    assert "4 shards" in specmill("manifest", OUT)
    assert '"record_id": "3"' in specmill("show", OUT, "--row", "3", "--json")
    chosen = specmill("export", OUT, "--to", "jsonl", "--where", "row >= 9", "-o", tmp_path / "rows.jsonl")
    assert "3 rows" in chosen
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3
    assert "all" in specmill("verify", OUT, "--quiet")
    assert "the same rows" in specmill("diff", OUT, plain)
    specmill("rerun", OUT, "--out", f"s3://{BUCKET}/sets/again", "--quiet")
    assert parts(s3, "sets/again/") == parts(s3)


def test_a_changed_part_is_found_and_another_run_refused(s3: Any, stored: None, prompts: Path) -> None:
    assert "holds a run with other settings" in specmill("run", *words(prompts, OUT, seed=8), "--quiet", code=1)
    stored = objects(s3)
    s3.put_object(Bucket=BUCKET, Key="sets/out/data/part-00001.parquet", Body=stored["sets/out/data/part-00002.parquet"])
    assert "was changed after it was written" in specmill("verify", OUT, "--quiet", code=1)
    s3.put_object(Bucket=BUCKET, Key="sets/new/notes.txt", Body=b"mine")
    assert "holds 'notes.txt' and no run" in specmill("run", *words(prompts, f"s3://{BUCKET}/sets/new"), "--quiet", code=1)
    assert "holds no dataset of specmill" in specmill("report", f"s3://{BUCKET}/sets/nowhere", code=1)


def test_a_killed_session_goes_on_and_leaves_no_upload(s3: Any, prompts: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "store-killed")
    command = [sys.executable, "-m", "producer.cli", "run", *map(str, words(prompts, OUT)), "--quiet"]
    session = subprocess.Popen(command, start_new_session=True)
    poll(lambda: parts(s3), 60, "a part")
    session.kill()
    session.wait()
    poll(lambda: not processes("store-killed"), 30, "the end of its workers and its broker")
    s3.create_multipart_upload(Bucket=BUCKET, Key="sets/out/data/part-00003.parquet")  # what a killed worker leaves of a large part
    specmill("run", *words(prompts, OUT), "--quiet")
    assert parts(s3) == local_parts(plain)
    assert [name for name in names(s3) if not name.startswith("log/")] == [name for name in FILES if not name.startswith("log/")]
    assert uploads(s3) == []
    assert manifest(s3)["status"] == "complete"


def test_a_submitted_run_lands_while_nobody_is_there(s3: Any, prompts: Path, plain: Path, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker, make_client(broker.url) as client:
        run_id = specmill("submit", *words(prompts, OUT, broker=broker.url), "--max-broker-mb", 0).split()[-1]
        assert sum(name.startswith("inputs/shard-") for name in names(s3)) == 4
        settings = WorkerSettings(lease_seconds=LEASE_SECONDS, roots=(place_of(f"s3://{BUCKET}/sets"),))
        with LocalWorkers(1, broker.url, tmp_path / "logs", settings):
            poll(lambda: len(Ledger(client, run_id).finished()) == 4, what="the end of the run")
            assert parts(s3) == local_parts(plain)
            assert [client.hstrlen(key, "rows") for key in client.scan_iter("run:*:result:*")] == [0, 0, 0, 0]
            specmill("run", *words(prompts, OUT, broker=broker.url, workers=0), "--quiet")
        assert list(client.scan_iter("run:*")) == []
    assert names(s3) == FILES
    assert manifest(s3)["status"] == "complete"
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
    assert "through the broker" not in logs
    assert SECRET_KEY not in logs


def test_a_worker_that_may_not_write_there_delivers_through_the_broker(s3: Any, prompts: Path, plain: Path, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        elsewhere = WorkerSettings(lease_seconds=LEASE_SECONDS, roots=(place_of(f"s3://{BUCKET}/other"),))
        with LocalWorkers(1, broker.url, tmp_path / "logs", elsewhere):
            specmill("run", *words(prompts, OUT, broker=broker.url, workers=0), "--quiet")
    assert parts(s3) == local_parts(plain)
    assert "below none of this worker's shared folders" in "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))


def test_a_store_that_is_away_sends_rows_through_the_broker(
    s3: Any, stored: None, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = manifest(s3)["spec"]["run_id"]
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    remote_path.filesystem_of.cache_clear()
    root = place_of(f"s3://{BUCKET}/sets")
    folder = SharedFolder.find(OUT, run_id, (root,))
    assert folder is not None
    from producer.dataset import Dataset

    dataset = Dataset.open(place_of(OUT))
    table = dataset.table(dataset.manifest.shards[0]).replace_schema_metadata(None)
    assert folder.land(dataset.manifest.spec, 0, table)
    os.kill(s3_server.pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(remote_path, "REQUEST_SECONDS", 0.5)
        monkeypatch.setattr(remote_path, "CONNECT_SECONDS", 0.5)
        remote_path.filesystem_of.cache_clear()
        away = SharedFolder(place_of(OUT), run_id, OUT)
        assert not away.land(dataset.manifest.spec, 0, table)
        assert SharedFolder.find(OUT, run_id, (place_of(f"s3://{BUCKET}/sets"),)) is None
    finally:
        os.kill(s3_server.pid, signal.SIGCONT)


def test_a_second_writer_changes_nothing_and_another_content_is_refused(s3: Any, stored: None, write_of: Callable[..., None]) -> None:
    before = objects(s3)
    write_of(shard=1)
    assert objects(s3) == before
    with pytest.raises(Exception, match="holds other rows than shard 1 has now"):
        write_of(shard=1, rows_of=2)
    assert objects(s3) == before


@pytest.fixture
def write_of() -> Callable[..., None]:
    """`write_of(shard, rows_of)`: lands the rows of a shard, or of another one, as that shard's part."""
    from producer.dataset import Dataset
    from schemas.tables import content_digest
    from worker.part_names import contract_digest, part_name

    def write(shard: int, rows_of: int | None = None) -> None:
        dataset = Dataset.open(place_of(OUT))
        spec = dataset.manifest.spec
        source = dataset.manifest.shards[shard if rows_of is None else rows_of]
        table = dataset.table(source).replace_schema_metadata(None)
        record = PartRecord(contract_digest(spec), shard, table.num_rows, 0, content_digest(table))
        land_part(place_of(OUT), part_name(spec, shard), table, record)

    return write


def test_a_data_set_on_a_file_system_that_only_fsspec_opens(prompts: Path, plain: Path, tmp_path: Path) -> None:
    out = f"local://{tmp_path}/out"
    specmill("run", *words(prompts, out), "--quiet")
    assert local_parts(tmp_path / "out") == local_parts(plain)
    assert "12 rows ok" in specmill("report", out, "--no-html")
