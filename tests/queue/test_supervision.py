"""What a worker does about its engine, and what its supervisor does about it."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow.dataset as pds
import pytest
import redis
from celery.worker import state as celery_state

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers, WorkerSettings
from schemas.errors import EngineError
from worker import main as worker_main
from worker.crash_kind import crash_kind
from worker.keep_awake import KeepAwake
from worker.main import NO_ENGINE

StartWorker = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_worker(broker: EmbeddedBroker, tmp_path: Path, mark: str) -> Iterator[StartWorker]:
    """`start_worker(*options)`: `specmill worker` as people start it; its output is in `worker.log`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> "subprocess.Popen[bytes]":
        with (tmp_path / "worker.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "producer.cli", "worker", *options],
                    env={**os.environ, "SPECMILL_BROKER": broker.url},
                    stdout=log,
                    stderr=log,
                )
            )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def finish(broker: EmbeddedBroker, spec: object, session: ModuleType, out: Path, **options: object) -> Coordinator:
    coordinator = Coordinator(spec, out, broker.url, session.MadeUpShards(spec), lease_seconds=session.LEASE_SECONDS, **options)
    assert coordinator.run().status == "complete"
    return coordinator


def leases(client: redis.Redis) -> list[bytes]:
    return list(client.scan_iter("run:*:lease:*"))


def test_a_hanging_row_costs_that_row_only(broker: EmbeddedBroker, mark: str, tmp_path: Path, session: ModuleType) -> None:
    settings = WorkerSettings(lease_seconds=session.LEASE_SECONDS, stall_seconds=3.0)
    with LocalWorkers(1, broker.url, tmp_path / "w", settings) as workers:
        spec = session.make_spec(6, 2, model="scripted:hang_on=prompt 3.", run_id=uuid.uuid4().hex)
        finish(broker, spec, session, tmp_path / "out", workers=workers)
    rows = pds.dataset(str(tmp_path / "out" / "data"), format="parquet").to_table().to_pylist()
    assert [row["record_id"] for row in rows if row["error"] is not None] == ["r3"]
    assert "made no progress for 3 s and was killed" in (tmp_path / "w" / "worker-0.log").read_text()


def test_an_engine_that_does_not_start_ends_the_session_with_its_words(
    broker: EmbeddedBroker, client: redis.Redis, mark: str, tmp_path: Path, session: ModuleType
) -> None:
    spec = session.make_spec(4, 1, model="scripted:start_crash=1", run_id=uuid.uuid4().hex)
    with (
        LocalWorkers(1, broker.url, tmp_path / "w") as workers,
        pytest.raises(EngineError, match=r"(?s)while it loaded scripted.*exit code 134"),
    ):
        Coordinator(spec, tmp_path / "out", broker.url, session.MadeUpShards(spec), workers=workers).run()
    assert list(client.scan_iter("run:*")) == []


def test_a_worker_whose_engine_does_not_start_leaves_by_itself(
    broker: EmbeddedBroker, start_worker: StartWorker, tmp_path: Path, session: ModuleType, help_: SimpleNamespace
) -> None:
    worker = start_worker()
    spec = session.make_spec(4, 1, model="scripted:start_crash=1", run_id=uuid.uuid4().hex)
    with pytest.raises(EngineError):
        Coordinator(spec, tmp_path / "out", broker.url, session.MadeUpShards(spec)).run()
    help_.poll(lambda: worker.poll() is not None, what="the worker's end")
    assert worker.returncode == NO_ENGINE
    assert "giving up: the engine process does not start" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize(("signals", "seconds"), [(1, 1.5), (2, 60.0)])
def test_sigterm_drains_and_the_second_one_leaves(
    signals: int,
    seconds: float,
    broker: EmbeddedBroker,
    client: redis.Redis,
    start_worker: StartWorker,
    tmp_path: Path,
    session: ModuleType,
    help_: SimpleNamespace,
) -> None:
    worker = start_worker()
    out = tmp_path / "out"
    spec = session.make_spec(2, 1, model=f"scripted:seconds={seconds}", run_id=uuid.uuid4().hex)
    states: list[str] = []

    def watch(_: object) -> None:
        if not states and leases(client):
            states.append("signalled")
            worker.send_signal(signal.SIGTERM)
            if signals == 2:
                time.sleep(0.3)
                worker.send_signal(signal.SIGTERM)

    started = time.monotonic()
    coordinator = Coordinator(spec, out, broker.url, session.MadeUpShards(spec), watch, lease_seconds=session.LEASE_SECONDS)
    coordinator.run(lambda: worker.poll() is not None or time.monotonic() - started > 30)
    assert worker.wait(10) == 0
    assert len(list((out / "data").glob("part-*"))) == (1 if signals == 1 else 0)
    assert leases(client) == []


def test_what_a_killed_worker_held_is_handed_on_at_once(
    broker: EmbeddedBroker,
    client: redis.Redis,
    start_worker: StartWorker,
    tmp_path: Path,
    session: ModuleType,
    mark: str,
    help_: SimpleNamespace,
) -> None:
    start_worker()
    spec = session.make_spec(4, 1, model="scripted:seconds=0.5", run_id=uuid.uuid4().hex)
    killed: list[float] = []

    def watch(_: object) -> None:
        if not killed and leases(client):
            inner = [pid for pid, command in help_.marked_processes(mark).items() if "worker.main" in command]
            os.kill(inner[0], signal.SIGKILL)
            killed.append(time.monotonic())

    coordinator = Coordinator(spec, tmp_path / "out", broker.url, session.MadeUpShards(spec), watch)  # with the usual lease of 20 s
    assert coordinator.run().status == "complete"
    assert time.monotonic() - killed[0] < 15
    assert client.get("unused") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "ended with signal SIGABRT\n[METAL] Command buffer execution failed: Insufficient Memory",
            "out of memory",
        ),
        ("ended with exit code 1 during shard 3; its last lines:\nMemoryError", "out of memory"),
        (
            "ended with signal SIGABRT …\n[METAL] Command buffer execution failed: kIOGPUCommandBufferCallbackErrorHang",
            "Metal fault",
        ),
        ("the engine process ended with signal SIGKILL during shard 1", "killed, as a system does that runs out of memory"),
        ("the engine process ended with signal SIGSEGV during shard 1", "fault in native code"),
        ("the engine process ended with exit code 139 during shard 1", "fault in native code"),
        ("the engine process ended with signal SIGHUP during shard 1", "ended by a signal"),
        ("the engine process ended with exit code 1 during shard 1", "ended by itself"),
    ],
)
def test_a_crash_is_reported_by_kind(text: str, kind: str) -> None:
    assert crash_kind(text) == kind


def test_a_mac_stays_awake_while_it_holds_a_shard_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, help_: SimpleNamespace
) -> None:
    fake, said = tmp_path / "caffeinate", tmp_path / "said"
    fake.write_text(f'#!/bin/sh\necho "$$ $@" > {said}.part; mv {said}.part {said}; exec sleep 60\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with KeepAwake("linux"):
        assert not said.exists()
    with KeepAwake("darwin"):
        help_.poll(said.exists)
        pid, *words = said.read_text().split()
        assert words == ["-i", "-w", str(os.getpid())]
        os.kill(int(pid), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    fake.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with KeepAwake("darwin"):
        pass


def test_a_consumer_that_holds_a_message_and_does_nothing_is_restarted(monkeypatch: pytest.MonkeyPatch, help_: SimpleNamespace) -> None:
    """Celery's thread pool swallows what is raised between the queue and the task, and then waits for ever."""

    class Request:
        pass

    request, task, ended = Request(), SimpleNamespace(busy=True, calls=1), threading.Event()
    ending = SimpleNamespace(is_set=ended.is_set, wait=lambda _: ended.wait(0.01))
    monkeypatch.setattr(worker_main, "IDLE_SECONDS", 0.1)
    celery_state.reset_state()
    celery_state.should_stop = None
    watch = threading.Thread(target=worker_main._watch_consumer, args=(task, ending))
    watch.start()
    try:
        celery_state.reserved_requests.add(request)
        time.sleep(0.3)
        assert celery_state.should_stop is None  # the task is at work on it
        task.busy = False
        help_.poll(lambda: celery_state.should_stop == 0, what="the restart")
    finally:
        ended.set()
        watch.join()
        celery_state.reset_state()
        celery_state.should_stop = None
