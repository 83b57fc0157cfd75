"""`EngineWatch`: a thread that kills the engine child when it makes no progress, or does not let go of a shard.

A child that hangs in a kernel answers nothing, so nothing but a signal ends it. The task learns from `verdict` why its child died.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from typing import Self

from schemas.progress import Tally
from worker.engine.client import EngineProcess
from worker.patience import STALL_SECONDS

DROP_SECONDS = 2.5  # from the wish to give a shard up to the kill; with a renewal's 2 s, in-flight shards stop within 5 s
TICK_SECONDS = 0.1
LONGEST_TICK = 1.0  # a tick that took longer was spent asleep, with the child; only so much of it counts

logger = logging.getLogger(__name__)


class EngineWatch:
    """Watches one job of the engine; use as a context around it."""

    def __init__(self, engine: EngineProcess, stall_seconds: float = STALL_SECONDS, drop_seconds: float = DROP_SECONDS) -> None:
        """Args.

        Args:
            engine: the child to kill.
            stall_seconds: longest time between two different tallies; 0 waits for ever.
            drop_seconds: longest time from `giving_up` to the end of the job.
        """
        self._engine = engine
        self._stall_seconds = stall_seconds
        self._drop_seconds = drop_seconds
        self._tally: Tally | None = None
        self._idle = 0.0
        self._dropping = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="engine-watch", daemon=True)
        self.verdict: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def progress(self, tally: Tally | None = None) -> None:
        """The child has said something; a tally counts when it differs from the last one, None always."""
        if tally is None or tally != self._tally:
            self._idle = 0.0
        self._tally = tally

    def giving_up(self) -> None:
        """The job is no longer wanted; may be called again and again."""
        if not self._dropping:
            self._idle = 0.0
            self._dropping = True

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(TICK_SECONDS):
            now = time.monotonic()
            self._idle += min(now - last, LONGEST_TICK)
            last = now
            if self._dropping and self._idle > self._drop_seconds:
                self._kill(f"did not give the shard up within {self._drop_seconds:g} s")
                return
            if not self._dropping and 0 < self._stall_seconds < self._idle:
                self._kill(f"made no progress for {self._stall_seconds:g} s")
                return

    def _kill(self, verdict: str) -> None:
        pid = self._engine.pid
        if pid is None or self._ended.is_set():
            return
        self.verdict = verdict
        logger.warning("the engine process %d %s: killed", pid, verdict)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
