"""The guard of an embedded broker: runs the server, starts it again when it dies, ends it when the guard's own parent is gone.

Run by path with the standard library alone (`python -I broker_guard.py SERVER CONFIG`), so that it starts in an instant. Its standard
input is a pipe from the coordinator; the kernel closes it however the coordinator ends. Exit code 1: the server does not stay up.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

POLL_SECONDS = 0.1
END_SECONDS = 5.0  # an orderly end takes milliseconds
MAX_DEATHS = 5  # within DEATHS_SECONDS
DEATHS_SECONDS = 10.0


class _EndError(Exception):
    pass


def guard(server: str, config: str) -> int:
    """Keep the server up until standard input ends; returns the guard's exit code."""
    deaths: list[float] = []
    while len(deaths) < MAX_DEATHS:
        process = subprocess.Popen([server, config], stdin=subprocess.DEVNULL, cwd=Path(config).parent)
        try:
            while process.poll() is None:
                if select.select([0], [], [], POLL_SECONDS)[0] and not os.read(0, 1024):
                    return 0
        finally:
            _end(process)
        now = time.monotonic()
        deaths = [at for at in deaths if now - at < DEATHS_SECONDS] + [now]
        print(f"guard: the server ended with code {process.returncode}", file=sys.stderr, flush=True)
    return 1


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _raise_end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a signal handler)
    raise _EndError


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _raise_end)
    signal.signal(signal.SIGHUP, _raise_end)
    try:
        sys.exit(guard(*sys.argv[1:]))
    except _EndError:
        sys.exit(0)
