"""`LocalWorkers`: worker processes of this machine, started, tended and ended by their parent: a coordinator, or `specmill worker`."""

import contextlib
import logging
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from schemas.errors import EngineError
from worker import BROKER_VARIABLE
from worker.main import END_SECONDS, NO_ENGINE, worker_name
from worker.patience import DRAIN_SECONDS, LEASE_SECONDS, STALL_SECONDS
from worker.remote_path import Place

MAX_BARREN_LIVES = 5  # of one worker in a row, each ended before it landed a shard
FIRST_PAUSE_SECONDS = 0.25  # before the second restart in a row; doubles
LAST_LINES = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of a group is told; as in `worker.main.run_worker`."""

    lease_seconds: float = LEASE_SECONDS
    stall_seconds: float = STALL_SECONDS
    drain_seconds: float = DRAIN_SECONDS
    models: tuple[str, ...] = ()
    name: str | None = None
    roots: tuple[Place, ...] = ()
    quiet_hours: str = ""
    metrics_port: int | None = None
    trust_remote_code: bool = False

    def words(self, index: int) -> list[str]:
        """The settings of worker number `index`, from 0, as options of `python -m worker.main`; each has a metrics port of its own."""
        words = [f"--lease-seconds={self.lease_seconds}", f"--stall-timeout={self.stall_seconds}", f"--drain-seconds={self.drain_seconds}"]
        words += ["--trust-remote-code"] if self.trust_remote_code else []
        words += [f"--metrics-port={self.metrics_port + index}"] if self.metrics_port is not None else []
        words += [f"--shared={root}" for root in self.roots] + ([f"--quiet-hours={self.quiet_hours}"] if self.quiet_hours else [])
        return words + [f"--model={model}" for model in self.models] + ([f"--name={self.name}"] if self.name else [])


@dataclass
class _Slot:
    """One worker's place: the process that fills it now, and how its predecessors fared."""

    log: Path | None
    process: "subprocess.Popen[bytes] | None" = None
    barren_lives: int = 0
    started_at: float = 0.0  # time.monotonic()
    start_at: float = 0.0


class LocalWorkers:
    """A fixed number of workers as a context; `tend` keeps the number."""

    def __init__(
        self,
        count: int,
        broker_url: str,
        folder: Path | None,
        settings: WorkerSettings | None = None,
        *,
        lease_seconds: float = LEASE_SECONDS,
        fruitful_seconds: float = math.inf,
    ) -> None:
        """Args.

        Args:
            count: processes, ≥ 0; each has an engine of its own.
            broker_url: the broker they serve.
            folder: for their output, `worker-N.log`; None leaves it on standard error.
            settings: what they are told; its lease time is `lease_seconds` when None.
            lease_seconds: time to live of their leases.
            fruitful_seconds: a life that was this long counts as fruitful whether or not a shard of it is known to have landed.
        """
        self._broker_url = broker_url
        self._settings = settings or WorkerSettings(lease_seconds=lease_seconds)
        self._fruitful_seconds = fruitful_seconds
        self._slots = [_Slot(None if folder is None else folder / f"worker-{index}.log") for index in range(count)]

    def __len__(self) -> int:
        return len(self._slots)

    def __enter__(self) -> Self:
        for slot in self._slots:
            self._start(slot)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End them all: by the end of their input, then by SIGKILL; their engines follow them."""
        processes = [slot.process for slot in self._slots if slot.process is not None]
        for process in processes:
            _close_input(process)
        deadline = time.monotonic() + END_SECONDS + 2.0
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [slot.process.pid for slot in self._slots if slot.process is not None and slot.process.poll() is None]

    def name_of(self, pid: int) -> str:
        """The name under which a worker process of this group is known."""
        return self._settings.name or worker_name(pid)

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is None:
                slot.process.send_signal(number)

    def note_landed(self, worker: str) -> None:
        """A shard of this worker has landed: whatever ends it later, it can work."""
        for slot in self._slots:
            if slot.process is not None and self.name_of(slot.process.pid) == worker:
                slot.barren_lives = 0

    def tend(self) -> list[str]:
        """Start again what has died.

        Returns:
            Names of the workers that have died since the last call; their leases may be released.

        Raises:
            EngineError: one died again and again without landing anything, or its engine does not start; the message has its last lines.
        """
        dead = []
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is not None:
                dead.append(self.name_of(slot.process.pid))
                self._bury(slot, slot.process)
            if slot.process is None and time.monotonic() >= slot.start_at:
                self._start(slot)
        return dead

    def _bury(self, slot: _Slot, process: "subprocess.Popen[bytes]") -> None:
        _close_input(process)
        slot.process = None
        fruitful = time.monotonic() - slot.started_at >= self._fruitful_seconds
        slot.barren_lives = 1 if fruitful else slot.barren_lives + 1
        logger.warning("worker %s ended with code %s", worker_name(process.pid), process.returncode)
        if process.returncode == NO_ENGINE:
            raise EngineError(
                "a worker gave up, because its engine does not start; `specmill doctor` tests this machine; its last lines:\n"
                + _last_lines(slot.log)
            )
        if slot.barren_lives >= MAX_BARREN_LIVES:
            raise EngineError(
                f"a worker ended {slot.barren_lives} times in a row before it landed a shard, the last time with code "
                f"{process.returncode}; its last lines:\n{_last_lines(slot.log)}"
            )
        pause = FIRST_PAUSE_SECONDS * 2 ** (slot.barren_lives - 2) if slot.barren_lives > 1 else 0.0
        slot.start_at = time.monotonic() + pause

    def _start(self, slot: _Slot) -> None:
        slot.started_at = time.monotonic()
        with contextlib.ExitStack() as stack:
            log = None if slot.log is None else stack.enter_context(_opened(slot.log))
            slot.process = subprocess.Popen(
                # -P: the user's folder must not lend us a module named like one of ours.
                [sys.executable, "-P", "-m", "worker.main", "--die-with-parent", *self._settings.words(self._slots.index(slot))],
                env={**os.environ, BROKER_VARIABLE: self._broker_url},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is the coordinator's business
            )


def _close_input(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _opened(log: Path) -> IO[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


def _last_lines(log: Path | None) -> str:
    if log is None:
        return "(above)"
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
    except OSError:
        return ""
