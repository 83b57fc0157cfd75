"""kill -9 of every kind of process at a random moment: the dataset is the same, and nothing is left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from producer.broker import EmbeddedBroker
from producer.manifest_file import read_manifest
from producer.run_lock import RunLock
from schemas.errors import SpecmillError

RECORDS, SHARD_SIZE, SAMPLES, WORKERS = 24, 3, 2, 2
MODEL = "scripted:seconds=0.03"  # 48 rows: 0.72 s with two workers
ARGUMENTS = (RECORDS, SHARD_SIZE, SAMPLES, WORKERS, MODEL)
VICTIMS = {
    "engine": "worker.engine.child",
    "worker": "worker.main",
    "server": "/valkey-server ",
    "guard": "broker_guard.py",
    "coordinator": "session.py",
}
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of a session that nobody disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    script = Path(__file__).parent / "session.py"
    subprocess.run([sys.executable, str(script), str(out), *map(str, ARGUMENTS)], check=True)
    return out


def pids(help_: SimpleNamespace, mark: str, victim: str) -> list[int]:
    commands = help_.marked_processes(mark).items()
    if victim == "server":
        return [pid for pid, command in commands if command.split(" ")[0].endswith("valkey-server")]
    return [pid for pid, command in commands if VICTIMS[victim] in command]


def landed(out: Path) -> int:
    return len(list((out / "data").glob("part-*.parquet"))) if (out / "data").is_dir() else 0


def finish(session: "subprocess.Popen[bytes]", start: Start, out: Path) -> None:
    """Wait for the session; one that was killed is followed by the same command again."""
    if session.wait(60) != 0:
        assert session.returncode == -signal.SIGKILL
        assert start(out, *ARGUMENTS).wait(60) == 0


def check(out: Path, undisturbed: Path, mark: str, help_: SimpleNamespace) -> None:
    assert help_.files_of(out) == help_.files_of(undisturbed)
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.status == "complete"
    assert sum(record.rows for record in manifest.shards) == RECORDS * SAMPLES
    assert all(record.backend.chip != "-" for record in manifest.shards)
    assert help_.stray_files(out) == []
    assert not (out / ".specmill").exists()
    help_.poll(lambda: not help_.marked_processes(mark), what="the end of every process")


@pytest.mark.parametrize(("victim", "seed"), [("engine", 1), ("worker", 1), ("server", 1), ("guard", 1), ("coordinator", 1)])
def test_the_death_of_any_process_at_any_moment_changes_nothing(
    victim: str, seed: int, undisturbed: Path, start_session: Start, tmp_path: Path, mark: str, help_: SimpleNamespace
) -> None:
    draw = random.Random(f"{victim}{seed}")
    out = tmp_path / "out"
    session = start_session(out, *ARGUMENTS)
    goal = draw.randrange(RECORDS // SHARD_SIZE - 2)
    help_.poll(lambda: landed(out) >= goal and pids(help_, mark, victim), what=f"{goal} parts")
    time.sleep(draw.random() * 0.15)
    victims = pids(help_, mark, victim)
    print(f"killing {victim} after {landed(out)} parts")
    if victims:
        os.kill(draw.choice(victims), signal.SIGKILL)
    finish(session, start_session, out)
    check(out, undisturbed, mark, help_)


def test_a_coordinator_killed_again_and_again_gets_there(
    undisturbed: Path, start_session: Start, tmp_path: Path, mark: str, help_: SimpleNamespace
) -> None:
    out = tmp_path / "out"
    for goal in (1, 3, 5):
        session = start_session(out, *ARGUMENTS)
        help_.poll(lambda goal=goal: landed(out) >= goal, what=f"{goal} parts")
        session.kill()
        session.wait()
    (out / "data" / ".part-00007.parquet.tmp-0123abcd").write_bytes(b"half a file")
    finish(start_session(out, *ARGUMENTS), start_session, out)
    check(out, undisturbed, mark, help_)


def test_when_everything_dies_at_once_the_same_command_clears_up(
    undisturbed: Path, start_session: Start, tmp_path: Path, mark: str, help_: SimpleNamespace
) -> None:
    out = tmp_path / "out"
    session = start_session(out, *ARGUMENTS)
    help_.poll(lambda: landed(out) >= 2, what="two parts")
    os.kill(session.pid, signal.SIGSTOP)
    for victim in ("guard", "worker"):
        for pid in pids(help_, mark, victim):
            os.kill(pid, signal.SIGKILL)
    session.kill()
    session.wait()
    assert pids(help_, mark, "server")
    finish(start_session(out, *ARGUMENTS), start_session, out)
    check(out, undisturbed, mark, help_)


def test_what_a_killed_coordinator_leaves_in_somebody_elses_broker_has_an_end(
    undisturbed: Path,
    broker: EmbeddedBroker,
    client: redis.Redis,
    start_session: Start,
    tmp_path: Path,
    mark: str,
    help_: SimpleNamespace,
) -> None:
    out = tmp_path / "out"
    session = start_session(out, *ARGUMENTS, broker.url)
    help_.poll(lambda: landed(out) >= 2, what="two parts")
    session.kill()
    session.wait()
    left = list(client.scan_iter("run:*"))
    assert left
    assert all(client.ttl(key) != -1 for key in left)
    assert start_session(out, *ARGUMENTS, broker.url).wait(60) == 0
    check(out, undisturbed, mark, help_)
    assert list(client.scan_iter("run:*")) == []


def test_a_killed_coordinator_takes_everything_with_it(start_session: Start, tmp_path: Path, mark: str, help_: SimpleNamespace) -> None:
    session = start_session(tmp_path / "out", RECORDS, SHARD_SIZE, SAMPLES, WORKERS, "scripted:hang_on=prompt")
    help_.poll(lambda: len(pids(help_, mark, "engine")) == WORKERS, what="the engines")
    session.kill()
    session.wait()
    help_.poll(lambda: not help_.marked_processes(mark), what="the end of every process")


def test_two_coordinators_never_write_to_one_folder(start_session: Start, tmp_path: Path, help_: SimpleNamespace) -> None:
    out = tmp_path / "out"
    session = start_session(out, *ARGUMENTS)
    help_.poll(lambda: landed(out) >= 1, what="a part")
    with pytest.raises(SpecmillError, match="another specmill run writes to"), RunLock(out):
        pass
    assert session.wait(60) == 0
    with RunLock(out):
        pass
    assert not (out / ".specmill").exists()
