"""Workers that see the dataset's folder land their parts themselves, and write nowhere else."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import redis
from click.testing import CliRunner

from producer.broker import EmbeddedBroker
from producer.cli import main
from producer.coordinator import Coordinator
from producer.fleet_status import FleetStatus
from producer.local_workers import LocalWorkers, WorkerSettings
from worker.shared_folder import SharedFolder


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of the test's own, so that it has no workers but the test's."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def run_shared(broker: EmbeddedBroker, tmp_path: Path, mark: str, session: ModuleType) -> Callable[..., None]:
    """`run_shared(out, roots, shared=True)`: a run on two workers that may write below `roots`."""

    def run(out: Path, roots: tuple[Path, ...], *, shared: bool = True) -> None:
        spec = session.make_spec(12, 3, 2, run_id=uuid.uuid4().hex)
        settings = WorkerSettings(lease_seconds=session.LEASE_SECONDS, roots=roots)
        with LocalWorkers(2, broker.url, tmp_path / f"logs-{out.name}", settings) as workers:
            shards = session.MadeUpShards(spec)
            options = {"workers": workers, "shared": shared, "lease_seconds": session.LEASE_SECONDS}
            assert Coordinator(spec, out, broker.url, shards, **options).run().status == "complete"

    return run


def logs(tmp_path: Path, name: str) -> str:
    return "".join(path.read_text() for path in (tmp_path / f"logs-{name}").glob("*.log"))


def test_parts_are_the_same_whoever_lands_them(
    run_shared: Callable[..., None], client: redis.Redis, tmp_path: Path, help_: SimpleNamespace
) -> None:
    shared = tmp_path / "mount"
    run_shared(tmp_path / "plain", (), shared=False)
    run_shared(shared / "out", (shared,))
    run_shared(tmp_path / "elsewhere", (shared,))
    for out in (shared / "out", tmp_path / "elsewhere"):
        assert help_.files_of(out) == help_.files_of(tmp_path / "plain")
        assert help_.stray_files(out) == []
        assert all(shard["backend"]["chip"] != "-" for shard in json.loads((out / "manifest.json").read_text())["shards"])
    assert "through the broker" not in logs(tmp_path, "out")
    assert "below none of this worker's shared folders; its rows go through the broker" in logs(tmp_path, "elsewhere")
    assert list(client.scan_iter("run:*")) == []


def test_a_worker_finds_only_the_runs_own_folder_below_its_roots(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    for folder in (root / "out" / "data", other / "out" / "data", root / "linked"):
        folder.mkdir(parents=True)
    for folder in (root / "out", other / "out", root / "linked"):
        (folder / "manifest.json").write_text('{"spec": {"run_id": "r"}}')
    (root / "link").symlink_to(other / "out")
    (root / "linked" / "data").symlink_to(other / "out" / "data")
    assert SharedFolder.find(str(root / "out"), "r", (root,)) is not None
    assert SharedFolder.find(str(root / "out"), "r", (other, root)) is not None
    refused = [root / "link", root / "linked", root / ".." / "other" / "out", other / "out", root / "nowhere", root / "out" / "data"]
    for path in refused:
        assert SharedFolder.find(str(path), "r", (root,)) is None, path
    assert SharedFolder.find(str(root / "out"), "another", (root,)) is None
    assert SharedFolder.find(str(root / "out"), "r", ()) is None
    assert SharedFolder.find(None, "r", (root,)) is None


def test_inputs_that_the_broker_has_no_room_for_lie_in_the_folder(
    broker: EmbeddedBroker, client: redis.Redis, tmp_path: Path, mark: str, session: ModuleType, help_: SimpleNamespace
) -> None:
    """A worker that does not see them leaves their shards to one that does; they are gone when the run is complete."""
    prompts, out = tmp_path / "prompts.txt", tmp_path / "mount" / "out"
    prompts.write_text("".join(f"prompt {index}.\n" for index in range(12)))
    words = [prompts, "--model", "scripted", "--depth", 0, "--shard-size", 3, "--max-tokens", 8, "--broker", broker.url]

    def specmill(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result.output

    room = 1.5 * len(session.MadeUpShards(session.make_spec(12, 3)).blob(0)) / 1e6  # for one shard and not for two
    assert "with --shared" in specmill("submit", *words, "--out", tmp_path / "other", "--max-broker-mb", room, code=1)
    assert list(client.scan_iter("run:*:blob:*")) == []
    said = specmill("submit", *words, "--out", out, "--shared", "--max-broker-mb", room)
    assert f"MB more in {out / 'inputs'}" in said
    assert len(list(client.scan_iter("run:*:blob:*"))) == 1
    assert [path.name for path in sorted((out / "inputs").iterdir())] == [f"shard-0000{shard}.arrow" for shard in (1, 2, 3)]
    blind = WorkerSettings(lease_seconds=session.LEASE_SECONDS)
    seeing = WorkerSettings(lease_seconds=session.LEASE_SECONDS, roots=(tmp_path / "mount",))
    with LocalWorkers(1, broker.url, tmp_path / "logs-blind", blind):
        help_.poll(lambda: FleetStatus.look(client).runs[0].finished == 1, 60, what="the shard in the broker")
        help_.poll(lambda: f"left shards of {out} to others" in FleetStatus.look(client).text(), 60, what="the refusal")
        with LocalWorkers(1, broker.url, tmp_path / "logs-seeing", seeing):
            help_.poll(lambda: FleetStatus.look(client).runs[0].state == "finished", 60, what="the end of the run")
    specmill("run", *words, "--out", out, "--shared", "--workers", 0, "--quiet")
    specmill("run", *words[:-2], "--out", tmp_path / "plain", "--quiet")
    assert help_.files_of(out) == help_.files_of(tmp_path / "plain")
    assert not (out / "inputs").exists()
    assert list(client.scan_iter("run:*")) == []


def test_a_submitted_run_lands_while_nobody_is_there(
    broker: EmbeddedBroker, client: redis.Redis, tmp_path: Path, mark: str, session: ModuleType, help_: SimpleNamespace
) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "mount" / "out"
    prompts.write_text("".join(f"prompt {index}.\n" for index in range(12)))
    words = [prompts, "--out", out, "--model", "scripted", "--depth", 0, "--shard-size", 3, "--max-tokens", 8, "--broker", broker.url]

    def specmill(*words: object) -> None:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output

    specmill("submit", *words, "--shared")
    settings = WorkerSettings(lease_seconds=session.LEASE_SECONDS, roots=(tmp_path / "mount",))
    with LocalWorkers(1, broker.url, tmp_path / "logs", settings):
        help_.poll(lambda: FleetStatus.look(client).runs[0].state == "finished", what="the end of the run")
        assert len(help_.files_of(out)) == 4
        sizes = [client.hstrlen(key, "rows") for key in client.scan_iter("run:*:result:*")]
        assert sizes == [0, 0, 0, 0]
        started = time.monotonic()
        specmill("run", *words, "--shared", "--workers", 0, "--quiet")
        assert time.monotonic() - started < 20
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert all(shard["backend"]["chip"] != "-" for shard in manifest["shards"])
    assert list(client.scan_iter("run:*")) == []
