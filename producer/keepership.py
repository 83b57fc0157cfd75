"""`Keepership`: a coordinator's right to feed and reconcile its run, and nobody else's while it has it."""

import time
from collections.abc import Callable

import redis

from schemas.errors import BrokerError
from worker.keeper_lock import COORDINATOR, KEEPER_SECONDS, KeeperLock

KEEP_SECONDS = 2.0  # between two renewals
TAKE_OVER_PAUSE_SECONDS = 0.5


class Keepership:
    """One session's hold on its run's `KeeperLock`.

    Attributes:
        held: whether this session keeps the run, as far as it knows.
    """

    def __init__(self, client: redis.Redis, run_id: str) -> None:
        self.held = False
        self._lock = KeeperLock(client, run_id, COORDINATOR)

    def take_over(self, stop: Callable[[], bool]) -> None:
        """Take the run over from a worker that keeps it, at once, or from a coordinator that is gone, when its time is up.

        Raises:
            BrokerError: another coordinator runs this run, and is still there when `stop()` says True or the patience is at its end.
        """
        deadline = time.monotonic() + KEEPER_SECONDS + 2 * KEEP_SECONDS
        while (holder := self._lock.take()) is not None:
            if stop() or time.monotonic() > deadline:
                raise BrokerError(f"the coordinator {holder} runs this run; wait for it or stop it")
            time.sleep(TAKE_OVER_PAUSE_SECONDS)
        self.held = True

    def renew(self) -> None:
        """Keep the run; to be called every `KEEP_SECONDS`.

        Raises:
            BrokerError: another coordinator has it.
        """
        if (holder := self._lock.take()) is not None:
            self.held = False
            raise BrokerError(f"the coordinator {holder} has taken this run over while this one was away")

    def leave(self) -> None:
        """Let others keep the run."""
        self._lock.leave()
