"""`ShardTask`: what a worker does with one message: claim, generate, land, release. It knows no mlx."""

import logging
import threading
import time
from collections.abc import Callable

from schemas.errors import DecodeError, EngineCrashedError, LeaseLostError, RunCancelledError, SpecmillError
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.run_spec import RunSpec
from schemas.shard import ShardMessage
from worker.engine.client import EngineProcess, ShardOutcome
from worker.lease import LEASE_SECONDS, Lease
from worker.ledger import Ledger
from worker.redis_client import BROKER_ERRORS, make_client
from worker.reports import Fault, LiveReport

LAND_PATIENCE_SECONDS = 600.0  # how long a finished shard waits for a broker that is away
FAULT_PAUSE_SECONDS = 0.5  # after the first fault in a row; doubles, so that one broken worker does not starve the others
MAX_PAUSE_SECONDS = 30.0
MESSAGE_CHARACTERS = 4000  # of an error's text that travels through the ledger

logger = logging.getLogger(__name__)


class ShardTask:
    """The task's state in one worker process: the engine, two clients and the name; called with one message at a time.

    Attributes:
        busy: whether a message is in work.
    """

    def __init__(
        self,
        broker_url: str,
        worker: str,
        engine: EngineProcess,
        stopping: Callable[[], bool],
        *,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """Args are those of `worker.main.run_worker`; `stopping` is polled while a shard runs."""
        self._client = make_client(broker_url)
        self._impatient_client = make_client(broker_url, patient=False)
        self._worker = worker
        self._engine = engine
        self._stopping = stopping
        self._lease_seconds = lease_seconds
        self._backend: Backend | None = None
        self._beat = 0
        self._faults_in_row = 0
        self._ledger: Ledger | None = None
        self.busy = False

    def __call__(self, data: object) -> str:
        """Work on the shard that a message names; never raises for what a message, a shard or an outage can cause.

        Returns:
            One word for logs and Flower: landed, skipped, dropped, cancelled, lost, crashed or failed.
        """
        try:
            message = ShardMessage.decode(data)
        except DecodeError as error:
            logger.warning("message dropped: %s", error)
            return "dropped"
        self.busy = True
        try:
            return self._work(message)
        except BROKER_ERRORS as error:
            logger.warning("shard %d dropped, the broker is away: %s", message.shard, error)
            return "dropped"
        finally:
            self.busy = False

    def close(self) -> None:
        """Leave the live table and close the clients."""
        try:
            if self._ledger is not None:
                self._ledger.forget_worker(self._worker)
        except BROKER_ERRORS as error:
            logger.debug("left without saying so: %s", error)
        self._client.close()
        self._impatient_client.close()

    def _work(self, message: ShardMessage) -> str:
        ledger = self._ledger = Ledger(self._client, message.run_id)
        shard = message.shard
        try:
            spec = ledger.spec()
        except DecodeError as error:
            logger.error("shard %d of run %s refused: %s", shard, message.run_id, error)
            return self._fail(ledger, shard, error)
        if spec is None or (blob := ledger.blob(shard)) is None:
            logger.info("shard %d of run %s is over or unknown: dropped", shard, message.run_id)
            return "dropped"
        started, start_clock = time.time(), time.perf_counter()
        renewing = Ledger(self._impatient_client, message.run_id)
        lease = Lease.claim(ledger, renewing, shard, self._worker, self._lease_seconds)
        if lease is None:
            return "skipped"
        try:
            outcome = self._generate(ledger, lease, spec, blob)
            report = self._report(message, lease, outcome, started, time.perf_counter() - start_clock)
            self._land(ledger, lease, outcome, report)
        except (LeaseLostError, RunCancelledError) as error:
            logger.info("shard %d given up: %s", shard, error)
            ledger.release(shard, lease.token, forgive=True)
            if self._stopping():
                ledger.record_fault(self._fault(shard, error))  # so that others get it at once
            return "lost" if isinstance(error, LeaseLostError) else "cancelled"
        except EngineCrashedError as error:
            logger.error("shard %d, attempt %d: %s", shard, lease.attempt, error)
            ledger.release(shard, lease.token)
            ledger.record_fault(self._fault(shard, error))
            return "crashed"
        except SpecmillError as error:
            logger.error("shard %d: %s: %s", shard, type(error).__name__, error)
            ledger.release(shard, lease.token, forgive=True)
            return self._fail(ledger, shard, error)
        self._faults_in_row = 0
        return "landed"

    def _generate(self, ledger: Ledger, lease: Lease, spec: RunSpec, blob: bytes) -> ShardOutcome:
        def show(tally: Tally) -> None:
            try:
                ledger.report_live(self._worker, self._live(lease.shard, tally))
            except BROKER_ERRORS as error:
                logger.debug("progress of shard %d not shown: %s", lease.shard, error)

        def stopped() -> bool:
            return self._stopping() or lease.lost or lease.cancelled

        show(Tally())
        with lease:
            try:
                outcome = self._engine.generate(spec, lease.shard, blob, on_tally=show, stopped=stopped)
            except RunCancelledError as error:
                if lease.lost:
                    raise LeaseLostError(f"another worker holds shard {lease.shard}, or it has landed") from error
                raise
        self._backend = outcome.backend
        return outcome

    def _land(self, ledger: Ledger, lease: Lease, outcome: ShardOutcome, report: AttemptReport) -> None:
        """Hand the rows over; a broker that is away is waited for, because the rows were expensive."""
        deadline = time.monotonic() + LAND_PATIENCE_SECONDS
        while True:
            try:
                answer = ledger.deliver(lease.shard, lease.token, outcome.rows, report, self._live(None, Tally()))
            except BROKER_ERRORS as error:
                if self._stopping() or time.monotonic() > deadline:
                    raise
                logger.warning("shard %d is finished and waits for the broker: %s", lease.shard, error)
                threading.Event().wait(1.0)
                continue
            if answer == "lost":
                raise LeaseLostError(f"another worker holds shard {lease.shard}")
            if answer == "gone":
                raise RunCancelledError(f"the run of shard {lease.shard} is over")
            return

    def _report(self, message: ShardMessage, lease: Lease, outcome: ShardOutcome, started: float, seconds: float) -> AttemptReport:
        return AttemptReport(
            run_id=message.run_id,
            shard=message.shard,
            attempt=lease.attempt,
            worker=self._worker,
            backend=outcome.backend,
            started=started,
            seconds=seconds,
            load_seconds=outcome.load_seconds,
            prefill_seconds=outcome.prefill_seconds,
            draft_seconds=outcome.draft_seconds,
            verify_seconds=outcome.verify_seconds,
            commit_seconds=outcome.commit_seconds,
            peak_bytes=outcome.peak_bytes,
            tally=outcome.tally,
        )

    def _live(self, shard: int | None, tally: Tally) -> LiveReport:
        self._beat += 1
        return LiveReport(beat=self._beat, shard=shard, tally=tally, backend=self._backend)

    def _fault(self, shard: int, error: SpecmillError) -> Fault:
        return Fault(worker=self._worker, shard=shard, kind=type(error).__name__, message=str(error)[:MESSAGE_CHARACTERS])

    def _fail(self, ledger: Ledger, shard: int, error: SpecmillError) -> str:
        """Record a fault of this worker or of the run, then leave the next message to others for a while."""
        ledger.record_fault(self._fault(shard, error))
        deadline = time.monotonic() + min(FAULT_PAUSE_SECONDS * 2**self._faults_in_row, MAX_PAUSE_SECONDS)
        self._faults_in_row += 1
        while time.monotonic() < deadline and not self._stopping():
            threading.Event().wait(0.1)
        return "failed"
