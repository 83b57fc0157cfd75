"""`specmill monitor`: the real Flower on a real broker, closed to whoever has no password."""

import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from producer.broker import EmbeddedBroker
from producer.cli import main
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from worker.reports import described

pytest.importorskip("flower")
PATIENCE_SECONDS = 40.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answer(port, path, password=None, method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    if password is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"specmill:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=10) as found:
            return found.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.fixture
def monitor(tmp_path):
    (tmp_path / "flowerconfig.py").write_text("raise SystemExit('ran a file of the folder that the user is in')")
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(tmp_path / "broker"))
        port = free_port()
        command = [sys.executable, "-P", "-m", "producer.cli", "monitor", "--port", str(port), "--state", str(tmp_path / "state")]
        environment = {**os.environ, "SPECMILL_BROKER": broker.url, "PYTHONUNBUFFERED": "1"}
        log = tmp_path / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while answer(port, "/healthcheck") != 200:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
            yield process, port, log.read_text(), tmp_path
        finally:
            stack.close()  # the broker leaves first
            process.terminate()
            try:
                process.wait(timeout=30)
            finally:
                process.kill()


def test_flower_is_on_loopback_read_only_and_behind_a_password_that_is_printed_once(monitor):
    process, port, said, folder = monitor
    password = said.split("password ")[1].split()[0]
    assert [answer(port, "/tasks"), answer(port, "/tasks", "wrong"), answer(port, "/tasks", password)] == [401, 401, 200]
    assert answer(port, "/api/worker/shutdown/w", password, "POST") == 403
    assert said.count(password) == 1
    assert (folder / "state").stat().st_mode & 0o777 == 0o700
    command_line = Path(f"/proc/{process.pid}/cmdline")
    if command_line.exists():
        assert password.encode() not in command_line.read_bytes()
        listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
        assert f"0100007F:{port:04X}" in listening
        assert f"00000000:{port:04X}" not in listening


def test_a_taken_port_is_one_clear_error(monitor):
    _, port, _, folder = monitor
    done = CliRunner().invoke(main, ["monitor", "--broker", "redis://127.0.0.1:1/0", "--port", str(port), "--state", str(folder / "other")])
    assert (done.exit_code, "--port takes another one" in done.stderr) == (1, True)


def test_a_monitor_without_a_broker_is_a_usage_error():
    assert CliRunner(env={"SPECMILL_BROKER": None}).invoke(main, ["monitor"]).exit_code == 2


def test_a_result_says_what_people_want_to_know():
    backend = Backend("cpu", "c", "-", "", True)
    tally = Tally(rows=64, failed=2, completion_tokens=4000, drafted_by_depth=(100, 100), accepted_by_depth=(41, 22))
    report = AttemptReport("r", 0, 1, "w", backend, 0.0, 11.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0, tally)
    assert described(report) == "64 rows, 2 failed, 4000 tokens, 400.0 tok/s, acceptance 0.41 0.22"
