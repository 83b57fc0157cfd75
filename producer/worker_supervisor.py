"""`WorkerSupervisor`: `specmill worker`: keeps worker processes up, and hands on at once what a dead one held."""

import logging
import signal
import threading
from types import FrameType

import redis

from producer.local_workers import LocalWorkers, WorkerSettings
from schemas.errors import EngineCrashedError, EngineError
from worker.fleet import Fleet
from worker.ledger import Ledger
from worker.main import NO_ENGINE
from worker.redis_client import make_client
from worker.reports import Fault

POLL_SECONDS = 0.2
FRUITFUL_SECONDS = 60.0  # a worker that lived so long is worth a restart without a pause

logger = logging.getLogger("specmill.worker")


class WorkerSupervisor:
    """The parent of one machine's workers; its signals are theirs: the first drains, the second leaves at once."""

    def __init__(self, count: int, broker_url: str, settings: WorkerSettings) -> None:
        """`count` processes, ≥ 1, each with an engine; a `settings.name` is for one alone."""
        self._client = make_client(broker_url, patient=False)
        self._workers = LocalWorkers(count, broker_url, None, settings, fruitful_seconds=FRUITFUL_SECONDS)
        self._signals = 0
        self._woken = threading.Event()

    def run(self) -> int:
        """Tend the workers until a signal; call it from the main thread.

        Returns:
            The process's exit code: 0, or `NO_ENGINE` when a worker cannot work at all; the log says why.
        """
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with self._workers:
                while not self._signals:
                    for name in self._workers.tend():
                        self._hand_on(name)
                    self._woken.wait(POLL_SECONDS)
                self._drain()
            return 0
        except EngineError as error:
            logger.error("%s", error)
            return NO_ENGINE
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._client.close()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._woken.set()

    def _drain(self) -> None:
        passed_on = 0
        while self._workers.pids:
            while passed_on < min(self._signals, 2):
                self._workers.signal(signal.SIGTERM)
                passed_on += 1
            self._woken.clear()
            self._woken.wait(POLL_SECONDS)

    def _hand_on(self, name: str) -> None:
        """Release the leases of a worker that has died, and tell whoever keeps the run."""
        try:
            Fleet(self._client).remove_worker(name)
            for run_id in Fleet(self._client).runs():
                ledger = Ledger(self._client, run_id)
                ledger.forget_worker(name)
                for shard in sorted(ledger.issued()):
                    if ledger.release(shard, f"{name}/"):
                        ledger.record_fault(Fault(name, shard, EngineCrashedError.__name__, "the worker process died"))
        except (redis.RedisError, ConnectionError) as error:
            logger.warning("what worker %s held is free again only when its lease runs out: %s", name, error)
