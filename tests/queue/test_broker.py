"""The embedded broker: closed to strangers, and gone when it should be."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from producer.broker import EmbeddedBroker
from worker.redis_client import BROKER_ERRORS, make_client

OWNER = """
import sys, time
from pathlib import Path
from producer.broker import EmbeddedBroker
with EmbeddedBroker(Path(sys.argv[1])) as broker:
    print(broker.url, flush=True)
    sys.stdin.read()
"""


def answers(url: str) -> bool:
    with make_client(url, patient=False) as client:
        try:
            return bool(client.ping())
        except BROKER_ERRORS:
            return False


def pids(help_: SimpleNamespace, mark: str, word: str) -> list[int]:
    return [pid for pid, command in help_.marked_processes(mark).items() if word in command]


def test_a_wrong_password_and_none_are_refused(broker: EmbeddedBroker) -> None:
    address = broker.url.partition("@")[2]
    for url in (f"redis://:wrong@{address}", f"redis://{address}"):
        with make_client(url, patient=False) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_dangerous_commands_are_refused_to_everybody(client: redis.Redis) -> None:
    for command in (["FLUSHALL"], ["CONFIG", "GET", "*"], ["KEYS", "*"], ["ACL", "LIST"]):
        with pytest.raises(redis.ResponseError, match="no permissions"):
            client.execute_command(*command)


def test_the_password_is_readable_to_its_owner_only_and_not_on_the_command_line(mark: str, tmp_path: Path, help_: SimpleNamespace) -> None:
    folder = tmp_path / "broker"
    with EmbeddedBroker(folder) as broker:
        password = broker.url.split("@")[0].rsplit(":", 1)[1]
        holding = [path for path in folder.rglob("*") if path.is_file() and password in path.read_text(errors="replace")]
        assert [path.name for path in holding] == ["valkey.conf"]
        assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
        commands = help_.marked_processes(mark).values()
        assert len(commands) == 2
        assert not any(password in command for command in commands)
    assert not folder.exists()


def test_what_was_written_survives_the_servers_death_at_the_same_address(mark: str, tmp_path: Path, help_: SimpleNamespace) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker, make_client(broker.url) as client:
        client.set("key", "value")
        first = int(client.info("server")["process_id"])
        os.kill(first, signal.SIGKILL)
        help_.poll(lambda: answers(broker.url), what="the server's return")
        assert client.get("key") == b"value"
        assert int(client.info("server")["process_id"]) != first


def test_a_killed_guard_is_replaced(mark: str, tmp_path: Path, help_: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker, make_client(broker.url) as client:
        client.set("key", "value")
        (guard,) = pids(help_, mark, "broker_guard")
        os.kill(guard, signal.SIGKILL)
        help_.poll(lambda: set(pids(help_, mark, "broker_guard")) - {guard}, what="another guard")
        help_.poll(lambda: answers(broker.url), what="the server's return")
        assert client.get("key") == b"value"
        assert len(help_.marked_processes(mark)) == 2
    assert "ended with code -9" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_server_ends_with_the_process_that_owns_the_broker(mark: str, tmp_path: Path, help_: SimpleNamespace, number: int) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "b")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().decode().strip()
        assert answers(url)
        owner.send_signal(number)
    help_.poll(lambda: not help_.marked_processes(mark), what="the end of guard and server")


def test_the_next_broker_ends_a_server_that_lost_owner_and_guard(mark: str, tmp_path: Path, help_: SimpleNamespace) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "b")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().decode().strip()
        (guard,) = pids(help_, mark, "broker_guard")
        os.kill(owner.pid, signal.SIGSTOP)  # so that it cannot replace the guard
        os.kill(guard, signal.SIGKILL)
        owner.kill()
    assert answers(url)
    with EmbeddedBroker(tmp_path / "b") as broker:
        assert broker.url != url
        assert not answers(url)
        assert len(help_.marked_processes(mark)) == 2
