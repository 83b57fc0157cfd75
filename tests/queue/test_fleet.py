"""Runs without a coordinator, workers that take some models only, and who keeps a run."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import redis

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.fleet_status import FleetStatus
from producer.local_workers import LocalWorkers, WorkerSettings
from producer.run_progress import RunProgress
from schemas.errors import BrokerError
from worker.keeper_lock import COORDINATOR, WORKER, KeeperLock
from worker.ledger import Ledger

MODEL = "scripted:seconds=0.02"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of the test's own, so that it has no workers but the test's."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"prompt {index}.\n" for index in range(24)))
    return path


@pytest.fixture
def group(broker: EmbeddedBroker, tmp_path: Path, mark: str, session: ModuleType) -> Iterator[Callable[..., LocalWorkers]]:
    """`group(count, models=…)`: workers without a coordinator, tended by nobody."""
    started: list[LocalWorkers] = []

    def start(count: int, models: tuple[str, ...] = ()) -> LocalWorkers:
        settings = WorkerSettings(lease_seconds=session.LEASE_SECONDS, models=models)
        started.append(LocalWorkers(count, broker.url, tmp_path / f"group-{len(started)}", settings).__enter__())
        return started[-1]

    yield start
    for workers in started:
        workers.__exit__()


def words(prompts: Path, out: Path) -> list[object]:
    return [prompts, "--out", out, "--model", MODEL, "--depth", 0, "--shard-size", 3, "--max-tokens", 8]


def states(client: redis.Redis) -> list[tuple[str, int, int]]:
    return [(run.state, run.landed, run.finished) for run in FleetStatus.look(client).runs]


def test_a_submitted_run_goes_on_by_itself_and_is_collected_later(
    specmill: Callable[..., str],
    group: Callable[..., LocalWorkers],
    client: redis.Redis,
    prompts: Path,
    tmp_path: Path,
    help_: SimpleNamespace,
) -> None:
    specmill("run", *words(prompts, tmp_path / "plain"), "--workers", 1, "--quiet")
    started = time.monotonic()
    run_id = specmill("submit", *words(prompts, tmp_path / "out")).strip()
    assert time.monotonic() - started < 30
    assert "there is no worker" in specmill("status")
    assert all(client.ttl(key) > 0 for key in client.scan_iter("*") if b"kombu" not in key)
    workers = group(2)
    help_.poll(lambda: states(client)[0][2] >= 2, what="two results")
    keeper = bytes(client.get(f"run:{run_id}:keeper") or b"").decode()
    pid = int(keeper.split("/")[1].split(":")[1])
    assert pid in workers.pids
    os.kill(pid, signal.SIGKILL)  # the other one keeps the run from now on, and the dead one's shard is not lost
    help_.poll(lambda: states(client) == [("finished", 0, 8)], what="the last result")
    assert "finished" in specmill("watch", run_id), "nobody collects it, so there is nothing more to wait for"
    found = json.loads(specmill("status", "--json"))
    assert found["runs"][0]["why"].startswith("`specmill run`")
    assert [card["model"] for card in found["workers"]][-1] == MODEL
    assert sorted(path.name for path in (tmp_path / "out" / "data").iterdir()) == []
    collected = specmill("run", *words(prompts, tmp_path / "out"), "--workers", 0, "--quiet")
    assert ("rows ok" in collected, "session took" in collected) == (True, False), "a session that only collects has no speed"
    assert help_.files_of(tmp_path / "out") == help_.files_of(tmp_path / "plain")
    assert list(client.scan_iter("run:*")) == []
    assert "no run" in specmill("status")


def test_a_coordinator_that_leaves_a_submitted_run_leaves_it_going(
    specmill: Callable[..., str],
    group: Callable[..., LocalWorkers],
    broker: EmbeddedBroker,
    client: redis.Redis,
    prompts: Path,
    tmp_path: Path,
    help_: SimpleNamespace,
) -> None:
    prompts.write_text("".join(f"prompt {index}.\n" for index in range(48)))  # more than lands before a signal arrives
    group(1)
    specmill("submit", *words(prompts, tmp_path / "out"))
    command = [
        sys.executable,
        "-m",
        "producer.cli",
        "run",
        *words(prompts, tmp_path / "out"),
        "--workers",
        0,
        "--quiet",
        "--broker",
        broker.url,
    ]
    collecting = subprocess.Popen([str(word) for word in command])
    help_.poll(lambda: list((tmp_path / "out" / "data").glob("part-*")), what="a part")
    collecting.send_signal(signal.SIGINT)
    collecting.wait(20)
    help_.poll(lambda: states(client)[0][0] == "finished", 60, "the end of the run")
    specmill("run", *words(prompts, tmp_path / "out"), "--workers", 0, "--quiet")
    assert len(help_.files_of(tmp_path / "out")) == 16


def test_shards_wait_visibly_for_a_worker_that_may_take_their_model(
    specmill: Callable[..., str],
    group: Callable[..., LocalWorkers],
    broker: EmbeddedBroker,
    client: redis.Redis,
    tmp_path: Path,
    session: ModuleType,
    help_: SimpleNamespace,
) -> None:
    group(1, models=("other",))
    spec = session.make_spec(4, 2, run_id=uuid.uuid4().hex)
    seen: list[str] = []

    def act(progress: RunProgress) -> None:
        text = specmill("status")
        if "no worker may take scripted" in text and "left shards of scripted to others" in text and not seen:
            seen.append(text)
            group(1, models=("scripted", "more"))

    shards, deadline = session.MadeUpShards(spec), time.monotonic() + 60
    coordinator = Coordinator(spec, tmp_path / "out", broker.url, shards, act, lease_seconds=session.LEASE_SECONDS)
    manifest = coordinator.run(lambda: time.monotonic() > deadline)
    assert manifest.status == "complete"
    assert "takes only other" in seen[0]


def test_two_coordinators_of_one_run_exclude_each_other(
    broker: EmbeddedBroker, client: redis.Redis, tmp_path: Path, session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producer.keepership.KEEPER_SECONDS", 0.1)
    monkeypatch.setattr("producer.keepership.KEEP_SECONDS", 0.1)
    spec = session.make_spec(4, 2, run_id=uuid.uuid4().hex)
    first, worker = KeeperLock(client, spec.run_id, COORDINATOR), KeeperLock(client, spec.run_id, WORKER)
    assert worker.take() is None
    assert first.take() is None  # a coordinator goes before a worker
    assert worker.take() is not None
    ledger = Ledger(client, spec.run_id)
    ledger.open(spec, [])
    with pytest.raises(BrokerError, match=r"the coordinator .* runs this run"):
        Coordinator(spec, tmp_path / "out", broker.url, session.MadeUpShards(spec)).run()
    assert ledger.is_open()
    first.leave()
    assert worker.take() is None
    ledger.close()


def test_the_lock_of_a_dead_process_of_this_machine_is_free(client: redis.Redis) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    lock = KeeperLock(client, "r", COORDINATOR)
    host = lock._token.split("/")[1].rpartition(":")[0]
    client.set("run:r:keeper", f"coordinator/{host}:{ended.stdout.strip()}/x", px=60_000)
    assert lock.take() is None
    client.set("run:r:keeper", "coordinator/elsewhere:1/x", px=60_000)
    assert lock.take() == "elsewhere:1"
    client.delete("run:r:keeper")
