"""`specmill` for the commands of the documentation: the real one, on the model in $DOCUMENTED_MODEL, with servers in the background.

What another test runs, and what takes too long here, is named in `RUN_ELSEWHERE` and does nothing.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

RUN_ELSEWHERE = {"doctor": "tests/verify/test_doctor.py"}
COMMAND = [sys.executable, "-P", "-m", "producer.cli"]
PATIENCE_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(words: list[str]) -> int:
    if words[0] in RUN_ELSEWHERE:
        return 0
    if "--metrics-port" in words:
        words[words.index("--metrics-port") + 1] = str(free_port())  # the documented one may be taken
    if words[0] in ("run", "submit"):
        words += ["--model", os.environ["DOCUMENTED_MODEL"]]
    if words[0] == "worker":
        subprocess.Popen([*COMMAND, *words])  # ends with the page
        return 0
    if words[0] == "monitor":
        return monitor(words)
    return subprocess.run([*COMMAND, *words], check=False).returncode


def monitor(words: list[str]) -> int:
    """Start it, wait until it answers, and end it."""
    port = free_port()
    process = subprocess.Popen([*COMMAND, *words, "--port", str(port), "--state", "monitor-state"])
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=10):
                    return 0
            except urllib.error.URLError:
                time.sleep(0.1)
        return 1
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
