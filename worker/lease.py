"""`Lease`: the right to work on one shard, held by a token in the ledger and renewed from a thread of its own.

The thread has its own client with short timeouts, so neither a busy engine nor a slow command of the task delays it. The tick that renews
also reads the run's cancel flag.
"""

import logging
import threading
import uuid
from typing import Self

from worker.ledger import Ledger
from worker.patience import LEASE_SECONDS
from worker.redis_client import BROKER_ERRORS

RENEWALS = 5  # per lease time
TICK_SECONDS = 2.0  # longest time between two renewals, which also learn of a cancelled or paused run

logger = logging.getLogger(__name__)


class Lease:
    """A claimed shard; use as a context, which renews it."""

    def __init__(self, renewing: Ledger, shard: int, token: str, attempt: int, seconds: float) -> None:
        """Args are those of `claim`; `attempt` is what the ledger answered."""
        self.shard = shard
        self.token = token
        self.attempt = attempt
        self._renewing = renewing
        self._seconds = seconds
        self._lost = threading.Event()
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{shard}", daemon=True)

    @classmethod
    def claim(cls, ledger: Ledger, renewing: Ledger, shard: int, worker: str, seconds: float = LEASE_SECONDS) -> Self | None:
        """Take the lease, or None when there is nothing to do.

        Args:
            ledger: the run's ledger.
            renewing: the same ledger through another, impatient client.
            shard: shard index.
            worker: the worker's name; its leases' tokens start with it and `/`.
            seconds: time to live.
        """
        token = f"{worker}/{uuid.uuid4().hex}"
        attempt = ledger.claim(shard, token, seconds)
        return cls(renewing, shard, token, attempt, seconds) if attempt else None

    @property
    def lost(self) -> bool:
        """Whether another worker holds the shard now, or it has landed."""
        return self._lost.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether the run is cancelled or over."""
        return self._cancelled.is_set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        in_contact = True
        while not self._ended.wait(min(self._seconds / RENEWALS, TICK_SECONDS)):
            try:
                state = self._renewing.renew(self.shard, self.token, self._seconds)
            except BROKER_ERRORS as error:
                if in_contact:
                    logger.warning("the lease of shard %d is not renewed while the broker is away: %s", self.shard, error)
                in_contact = False
                continue
            in_contact = True
            if state == "lost":
                self._lost.set()
                return
            if state == "cancelled":
                self._cancelled.set()
                return
