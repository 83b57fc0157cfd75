"""Flower on a broker of its own, as `specmill monitor` starts it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from producer.broker import EmbeddedBroker

COMMAND = [sys.executable, "-P", "-m", "producer.cli"]
PASSWORD = "for-this-page-only"
PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def flower_page(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The environment in which `specmill` finds the broker, and the page's address with its password, as soon as it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        environment = {**os.environ, "SPECMILL_BROKER": broker.url, "SPECMILL_MONITOR_PASSWORD": PASSWORD}
        log = folder / "flower.log"
        with log.open("wb") as sink:
            words = ["monitor", "--port", str(port), "--state", str(folder / "state")]
            process = subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=sink, stderr=sink, env=environment)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _answers(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
            yield environment, f"http://specmill:{PASSWORD}@127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            finally:
                process.kill()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.05)
        return False
