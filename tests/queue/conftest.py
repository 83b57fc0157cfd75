"""A real Valkey, real workers, and the promise that no test leaves a process behind."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import redis
from chaos_fleet import MARK, files_of
from chaos_fleet import processes as marked_processes
from click.testing import CliRunner

from producer.broker import EmbeddedBroker
from producer.cli import main
from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers
from schemas.manifest import Manifest
from worker.redis_client import make_client, password_of


def _load_session() -> ModuleType:
    spec = importlib.util.spec_from_file_location("specmill_tests_session", Path(__file__).parent / "session.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SESSION = _load_session()


def poll(condition: Callable[[], Any], seconds: float = 90.0, what: str = "the condition") -> Any:
    """The first true value of `condition`, asked until then."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.01)
    return value


def _end_all(mark: str) -> dict[int, str]:
    """Processes with the mark that do not end by themselves; they are killed."""
    deadline = time.monotonic() + 10
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks every process that the test starts; afterwards none may be left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    left = _end_all(value)
    assert not left, f"left running: {left}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """An embedded broker for the module."""
    with EmbeddedBroker(tmp_path_factory.mktemp("valkey") / "broker") as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[redis.Redis]:
    with make_client(broker.url) as connected:
        yield connected


@pytest.fixture(scope="module")
def workers(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorkers]:
    """Two workers for the module."""
    folder = tmp_path_factory.mktemp("workers")
    with LocalWorkers(2, broker.url, folder, lease_seconds=SESSION.LEASE_SECONDS) as running:
        yield running
    for log in folder.glob("*.log"):
        print(log.read_text())
        assert str(password_of(broker.url)) not in log.read_text()


@pytest.fixture
def session() -> ModuleType:
    """`tests/queue/session.py`: `make_spec`, `MadeUpShards`, `LEASE_SECONDS`."""
    return SESSION


@pytest.fixture
def run_here(broker: EmbeddedBroker, workers: LocalWorkers) -> Callable[..., SimpleNamespace]:
    """`run_here(out, records, shard_size, samples=…, model=…, stop=…, on_progress=…)` on the module's broker and workers."""

    def run(out: Path, records: int, shard_size: int, samples: int = 1, model: str = "scripted", **options: Any) -> SimpleNamespace:
        spec = SESSION.make_spec(records, shard_size, samples, model, run_id=uuid.uuid4().hex)
        stop = options.pop("stop", lambda: False)
        shards = options.pop("shards", None) or SESSION.MadeUpShards(spec)
        coordinator = Coordinator(spec, out, broker.url, shards, workers=workers, lease_seconds=SESSION.LEASE_SECONDS, **options)
        manifest: Manifest = coordinator.run(stop)
        return SimpleNamespace(spec=spec, manifest=manifest, coordinator=coordinator)

    return run


@pytest.fixture
def start_session(mark: str) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """`start_session(out, records, shard_size, samples, workers, model)`: the whole of a run as a process that may be killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(out: Path, *arguments: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(Path(__file__).parent / "session.py"), str(out), *map(str, arguments)]
        started.append(subprocess.Popen(command, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def stray_files(out: Path) -> list[str]:
    """Files that a finished dataset folder should not have."""
    allowed = re.compile(r"manifest\.json|data/part-\d{5}\.parquet|log/attempts-\d{4}\.parquet")
    names = [str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()]
    return [name for name in names if not allowed.fullmatch(name)]


@pytest.fixture
def help_() -> SimpleNamespace:
    """Helper functions of this file."""
    return SimpleNamespace(poll=poll, marked_processes=marked_processes, files_of=files_of, stray_files=stray_files)


@pytest.fixture
def specmill(broker: EmbeddedBroker) -> Callable[..., str]:
    """`specmill("status", …)`: a command on the module's broker; its standard output."""

    def call(*words: object) -> str:
        result = CliRunner(env={"SPECMILL_BROKER": broker.url}).invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.stdout

    return call
