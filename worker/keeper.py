"""`Keeper`: a worker's part in runs that were submitted and whose coordinator is away: feeding and reconciling.

Every worker looks every two seconds; the run's `KeeperLock` lets one of them act. Their inputs lie in the broker already, and their
results stay there until somebody collects them with `specmill run`. The keeper also writes the worker's card for `specmill status`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from schemas.errors import CalibrationError, DecodeError, EngineCrashedError, RunCancelledError, TooManyErrorsError
from schemas.run_spec import RunSpec
from worker.calibration import CalibrationWatch
from worker.error_rate import ErrorRate
from worker.feeder import WINDOW, Feeder
from worker.fleet import Fleet, WorkerCard
from worker.keeper_lock import WORKER, KeeperLock
from worker.ledger import Ledger
from worker.reconciler import INTERVAL_SECONDS, Reconciler
from worker.redis_client import BROKER_ERRORS, make_client
from worker.reports import Fault
from worker.run_terms import RunTerms

FAULTS_IN_ROW = 3  # other than deaths of engines, without a result between them, that hold a run, or end a session
DEATHS_LIMIT = 9  # of engines, while nothing has been completed, that hold a run, or end a session

logger = logging.getLogger(__name__)


@dataclass
class _Kept:
    """What a keeper remembers of one run."""

    ledger: Ledger
    lock: KeeperLock
    reconciler: Reconciler
    feeder: Feeder
    spec: RunSpec
    terms: RunTerms
    error_rate: ErrorRate
    calibration: CalibrationWatch = field(default_factory=CalibrationWatch)
    judged: set[int] = field(default_factory=set)
    paused: bool = False
    faults: int = 0
    deaths: int = 0
    results: int = 0


class Keeper:
    """Runs in a thread of the worker, with a client of its own."""

    def __init__(self, broker_url: str, app: Celery, card: Callable[[tuple[str, ...]], WorkerCard], *, lease_seconds: float) -> None:
        """`card` makes the worker's card, given the runs that it keeps."""
        self._client = make_client(broker_url, patient=False)
        self._fleet = Fleet(self._client)
        self._app = app
        self._card = card
        self._lease_seconds = lease_seconds
        self._kept: dict[str, _Kept] = {}

    def run(self, wait: Callable[[float], None], ended: Callable[[], bool]) -> None:
        """Look again and again until `ended()`; `wait` sleeps, and ends early with it."""
        while not ended():
            try:
                self.look()
            except (*BROKER_ERRORS, OperationalError) as error:
                logger.debug("keeping nothing while the broker is away: %s", error)
                for kept in self._kept.values():
                    kept.reconciler.contact_broken()
            except (redis.ResponseError, DecodeError) as error:
                logger.warning("keeping is refused: %s", error)
            wait(INTERVAL_SECONDS)

    def look(self) -> None:
        """One look at every run of the broker."""
        self._fleet.show(self._card(tuple(self._kept)))
        cards: list[WorkerCard] | None = None  # read by those who need them: a thousand workers would read a thousand cards each
        runs = self._fleet.runs()
        self._kept = {run_id: kept for run_id, kept in self._kept.items() if run_id in runs}
        for run_id in runs:
            kept = self._kept.get(run_id) or self._meet(run_id)
            if kept is None:
                continue
            if kept.lock.take() is not None:
                self._kept.pop(run_id, None)
                continue
            self._kept[run_id] = kept
            cards = self._fleet.workers() if cards is None else cards
            self._keep(kept, sum(card.takes(kept.spec.model.name, kept.ledger.wanted_class(kept.spec)) for card in cards))

    def leave(self) -> None:
        """Let others keep what this one kept, and take the card away."""
        try:
            for kept in self._kept.values():
                kept.lock.leave()
            self._fleet.remove_worker(self._card(()).name)
        except (redis.RedisError, ConnectionError) as error:
            logger.debug("left without saying so: %s", error)

    def _meet(self, run_id: str) -> _Kept | None:
        ledger = Ledger(self._client, run_id)
        if not ledger.is_submitted() or (spec := ledger.spec()) is None:
            return None
        lock = KeeperLock(self._client, run_id, WORKER)
        reconciler = Reconciler(self._client, run_id, lease_seconds=self._lease_seconds)
        terms = ledger.terms()
        return _Kept(ledger, lock, reconciler, Feeder(self._app, run_id, terms.priority), spec, terms, ErrorRate(terms.max_error_rate))

    def _keep(self, kept: _Kept, workers: int) -> None:
        """Faults, what a pause has let go, what got lost, and then new shards.

        What has come back is judged as a coordinator judges it, before more is handed out.
        """
        if kept.ledger.cancelled() or kept.ledger.paused() is not None:
            kept.paused = True
            return
        if (terms := kept.ledger.terms()) != kept.terms:
            kept.terms, kept.error_rate, kept.calibration = terms, ErrorRate(terms.max_error_rate), CalibrationWatch()
            kept.feeder.priority = terms.priority
            kept.judged.clear()
        issued = kept.ledger.issued()
        if kept.paused:
            kept.paused, kept.faults, kept.deaths = False, 0, 0
            for shard in kept.reconciler.adrift(issued):
                kept.feeder.send_again(kept.ledger, shard)
        done, finished = kept.ledger.done(), kept.ledger.finished()
        if len(done) + len(finished) > kept.results:
            kept.results, kept.faults = len(done) + len(finished), 0
        if not self._judge(kept, finished):
            return
        while (fault := kept.ledger.next_fault()) is not None:
            self._handle(kept, fault, issued)
        for shard in kept.reconciler.look(issued).lost:
            logger.warning("shard %d was lost with its worker or its message; handed out again", shard)
            kept.feeder.send_again(kept.ledger, shard)
        room = WINDOW * max(1, workers) - len(issued)
        fresh = sorted(set(range(kept.spec.shards)) - done - finished - issued) if room > 0 else []
        for shard in fresh[: max(0, room)]:
            kept.ledger.issue(shard)
            kept.feeder.send(shard)

    def _judge(self, kept: _Kept, finished: set[int]) -> bool:
        """Look at what has come back; a run that is plainly misconfigured, or whose engine contradicts itself, is held.

        `specmill resume` lets it go on regardless: the limit that held it is lifted.
        """
        for shard in sorted(finished - kept.judged):
            if (report := kept.ledger.report(shard)) is None:
                continue
            kept.judged.add(shard)
            try:
                if kept.terms.watch_calibration:
                    kept.calibration.check(report)
                kept.error_rate.add(report.tally.rows, report.failures, report.example)
            except (CalibrationError, TooManyErrorsError) as error:
                broken = isinstance(error, CalibrationError)
                lifted = replace(kept.terms, watch_calibration=False) if broken else replace(kept.terms, max_error_rate=1.0)
                kept.ledger.set_terms(lifted)
                kept.ledger.pause(str(error))
                logger.error("the run %s is held: %s", kept.spec.run_id, error)
                return False
        return True

    def _handle(self, kept: _Kept, fault: Fault, issued: set[int]) -> None:
        logger.warning("worker %s, shard %d: %s: %s", fault.worker, fault.shard, fault.kind, fault.message)
        if fault.kind == EngineCrashedError.__name__:
            kept.deaths += 1
        elif fault.kind != RunCancelledError.__name__:
            kept.faults += 1
        if kept.faults >= FAULTS_IN_ROW or (kept.deaths >= DEATHS_LIMIT and not kept.results):
            kept.ledger.pause(f"{fault.kind} on {fault.worker}: {fault.message}")
            logger.error("the run %s is held: nothing of it can be completed", kept.spec.run_id)
        elif fault.shard in issued and kept.ledger.states([fault.shard])[fault.shard] == "absent":
            kept.feeder.send_again(kept.ledger, fault.shard)
