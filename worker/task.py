"""`ShardTask`: what a worker does with one message: claim, generate, land, release. It knows no mlx."""

import logging
import threading
import time
from collections.abc import Callable

from schemas.errors import (
    BackendError,
    DecodeError,
    EngineCrashedError,
    EngineStartError,
    LeaseLostError,
    RunCancelledError,
    SpecmillError,
)
from schemas.profile import ANY, Backend
from schemas.progress import AttemptReport, Tally
from schemas.run_spec import RunSpec
from schemas.shard import ShardMessage
from schemas.tables import table_from_bytes
from worker.engine.client import EngineProcess, ShardOutcome
from worker.engine_job import EngineJob
from worker.error_rate import failures_of
from worker.feeder import CAREFUL_AFTER
from worker.fleet import WorkerCard
from worker.keep_awake import KeepAwake
from worker.lease import Lease
from worker.ledger import Ledger
from worker.patience import LEASE_SECONDS, STALL_SECONDS
from worker.redis_client import BROKER_ERRORS, make_client
from worker.remote_path import Place
from worker.reports import Fault, LiveReport, described
from worker.run_terms import PRIORITIES
from worker.shared_folder import SharedFolder
from worker.worker_counts import WorkerCounts

LAND_PATIENCE_SECONDS = 600.0  # how long a finished shard waits for a broker that is away
FAULT_PAUSE_SECONDS = 0.5  # after the first fault in a row; doubles, so that one broken worker does not starve the others
MAX_PAUSE_SECONDS = 30.0
REFUSAL_PAUSE_SECONDS = 0.05  # after a message that is for other workers; doubles
MAX_REFUSAL_PAUSE_SECONDS = 2.0
FAILED_STARTS = 3  # of the engine in a row, after which the worker gives up
MESSAGE_CHARACTERS = 4000  # of an error's text that travels through the ledger

logger = logging.getLogger(__name__)


class ShardTask:
    """The task's state in one worker process: the engine, two clients and the name; called with one message at a time.

    Attributes:
        busy: whether a message is in work.
        calls: messages so far.
        counts: what came of them.
        resting: set while the worker keeps its quiet hours; for its card.
    """

    def __init__(
        self,
        broker_url: str,
        worker: str,
        engine: EngineProcess,
        stopping: Callable[[], bool],
        *,
        give_up: Callable[[str], None] = lambda _: None,
        send_back: Callable[[ShardMessage, str], None] = lambda *_: None,
        models: tuple[str, ...] = (),
        roots: tuple[Place, ...] = (),
        lease_seconds: float = LEASE_SECONDS,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """Args are those of `worker.main.run_worker`.

        `stopping` is polled while a shard runs; `give_up` is told why when this worker's engine cannot even start; `send_back` gets
        messages for models other than `models` and for other backend classes; parts of shared runs may be landed below `roots`.
        """
        self._client = make_client(broker_url)
        self._impatient_client = make_client(broker_url, patient=False)
        self._worker = worker
        self._engine = engine
        self._stopping = stopping
        self._give_up = give_up
        self._send_back = send_back
        self._models = models
        self._roots = roots
        self._folder: SharedFolder | None = None
        self._model: str | None = None
        self._class: str | None = None
        self._refused: str | None = None
        self._refusals_in_row = 0
        self._in_work: ShardMessage | None = None
        self._lease_seconds = lease_seconds
        self._stall_seconds = stall_seconds
        self._failed_starts = 0
        self._proven_in: str | None = None  # the run in which this worker's engine has completed a row
        self._backend: Backend | None = None
        self._beat = 0
        self._faults_in_row = 0
        self._ledger: Ledger | None = None
        self.counts = WorkerCounts()
        self.busy = False
        self.calls = 0
        self.resting = False

    def __call__(self, data: object) -> str:
        """Work on the shard that a message names; never raises for what a message, a shard or an outage can cause.

        Returns:
            A word for logs and Flower: landed, skipped, dropped, passed on, cancelled, lost, crashed or failed.
        """
        self.calls += 1
        try:
            message = ShardMessage.decode(data)
        except DecodeError as error:
            logger.warning("message dropped: %s", error)
            return "dropped"
        self.busy = True
        outcome = "dropped"
        try:
            outcome = self._work(message)
        except BROKER_ERRORS as error:
            logger.warning("shard %d dropped, the broker is away: %s", message.shard, error)
        finally:
            self.counts.end(outcome)
            self._in_work = None
            self.busy = False
        return outcome

    def card(self, keeps: tuple[str, ...]) -> WorkerCard:
        """What this worker says of itself; called from another thread."""
        message = self._in_work
        return WorkerCard(
            name=self._worker,
            run_id=None if message is None else message.run_id,
            shard=None if message is None else message.shard,
            model=self._model,
            models=self._models,
            refused=self._refused,
            resting=self.resting,
            keeps=keeps,
            backend=self._class,
        )

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
            job = ledger.job(shard)
        except DecodeError as error:
            logger.error("shard %d of run %s refused: %s", shard, message.run_id, error)
            return self._fail(ledger, shard, error)
        if job is None:
            logger.info("shard %d of run %s is over or unknown: dropped", shard, message.run_id)
            return "dropped"
        spec, blob = job
        folder = self._shared_folder(ledger, spec) if blob is None else None
        if blob is None and folder is None:
            return self._pass_on(message, ledger.shared() or "inputs elsewhere")
        if (wanted := self._wanted_of_others(ledger, spec)) is not None:
            return self._pass_on(message, wanted)
        started, start_clock = time.time(), time.perf_counter()
        renewing = Ledger(self._impatient_client, message.run_id)
        lease = Lease.claim(ledger, renewing, shard, self._worker, self._lease_seconds)
        if lease is None:
            return "skipped"
        self._in_work, self._refused, self._refusals_in_row = message, None, 0
        self.counts.begin(lease.attempt)
        try:
            if folder is not None:
                blob = folder.input(shard)
            assert blob is not None
            outcome = self._generate(ledger, lease, spec, blob)
            report = self._report(message, lease, outcome, started, time.perf_counter() - start_clock)
            self._land(ledger, lease, spec, outcome, report)
        except (LeaseLostError, RunCancelledError) as error:
            logger.info("shard %d given up: %s", shard, error)
            ledger.release(shard, lease.token, forgive=True)
            if self._stopping():
                ledger.record_fault(self._fault(shard, error))  # so that others get it at once
            return "lost" if isinstance(error, LeaseLostError) else "cancelled"
        except BackendError as error:
            logger.info("shard %d left to others: %s", shard, error)
            ledger.release(shard, lease.token, forgive=True)
            return self._pass_on(message, ledger.wanted_class(spec) or spec.backend)
        except EngineCrashedError as error:
            logger.error("shard %d, attempt %d: %s", shard, lease.attempt, error)
            ledger.release(shard, lease.token)
            ledger.record_fault(self._fault(shard, error))
            return "crashed"
        except SpecmillError as error:
            logger.error("shard %d: %s: %s", shard, type(error).__name__, error)
            ledger.release(shard, lease.token, forgive=True)
            self._note_start(error)
            return self._fail(ledger, shard, error)
        self._faults_in_row = 0
        logger.info("shard %d of run %s landed, attempt %d, %.1f s", shard, message.run_id, lease.attempt, report.seconds)
        return described(report)

    def _generate(self, ledger: Ledger, lease: Lease, spec: RunSpec, blob: bytes) -> ShardOutcome:
        def show(tally: Tally) -> None:
            self.counts.progress(tally)
            try:
                ledger.report_live(self._worker, self._live(lease.shard, tally))
            except BROKER_ERRORS as error:
                logger.debug("progress of shard %d not shown: %s", lease.shard, error)

        def stopped() -> bool:
            return self._stopping() or lease.lost or lease.cancelled

        job = EngineJob(self._engine, spec, lease.shard, on_tally=show, stopped=stopped, stall_seconds=self._stall_seconds)
        with KeepAwake(), lease:
            try:
                self._join_class(ledger, spec, job)
                show(Tally())
                job.load()
                self._failed_starts, self._model = 0, spec.model.name
                careful = lease.attempt > CAREFUL_AFTER and ledger.is_careful(lease.shard)
                outcome = job.careful(blob, ledger, proven=self._proven_in == spec.run_id) if careful else job.whole(blob)
            except RunCancelledError as error:
                if lease.lost:
                    raise LeaseLostError(f"another worker holds shard {lease.shard}, or it has landed") from error
                raise
        self.counts.progress(outcome.tally)
        self._backend, self._class = outcome.backend, outcome.backend.class_name
        if outcome.tally.rows > outcome.tally.failed:
            self._proven_in = spec.run_id
        return outcome

    def _land(self, ledger: Ledger, lease: Lease, spec: RunSpec, outcome: ShardOutcome, report: AttemptReport) -> None:
        """Land the part in a shared folder, else hand the rows over; a broker that is away is waited for: the rows were expensive."""
        rows: bytes | None = None
        deadline = time.monotonic() + LAND_PATIENCE_SECONDS
        while True:
            try:
                if rows is None:
                    rows = self._land_directly(ledger, spec, lease.shard, outcome.rows)
                answer = ledger.deliver(lease.shard, lease.token, rows, report, self._live(None, Tally()))
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

    def _land_directly(self, ledger: Ledger, spec: RunSpec, shard: int, rows: bytes) -> bytes:
        """What is left to go through the broker: nothing, where this worker sees the dataset's folder."""
        folder = self._shared_folder(ledger, spec)
        return b"" if folder is not None and folder.land(spec, shard, table_from_bytes(rows)) else rows

    def _shared_folder(self, ledger: Ledger, spec: RunSpec) -> SharedFolder | None:
        path = ledger.shared() if self._roots else None
        if self._folder is None or (self._folder.path, self._folder.run_id) != (path, spec.run_id):
            self._folder = SharedFolder.find(path, spec.run_id, self._roots)
        return self._folder

    def _report(self, message: ShardMessage, lease: Lease, outcome: ShardOutcome, started: float, seconds: float) -> AttemptReport:
        failures, example = failures_of(table_from_bytes(outcome.rows)) if outcome.tally.failed else ({}, "")
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
            failures=failures,
            example=example[:MESSAGE_CHARACTERS],
        )

    def _live(self, shard: int | None, tally: Tally) -> LiveReport:
        self._beat += 1
        return LiveReport(beat=self._beat, shard=shard, tally=tally, backend=self._backend)

    def _fault(self, shard: int, error: SpecmillError) -> Fault:
        return Fault(worker=self._worker, shard=shard, kind=type(error).__name__, message=str(error)[:MESSAGE_CHARACTERS])

    def _wanted_of_others(self, ledger: Ledger, spec: RunSpec) -> str | None:
        """The model or the backend class that a run wants and this worker is known not to have, or None."""
        if self._models and spec.model.name not in self._models:
            return spec.model.name
        wanted = ledger.wanted_class(spec)
        return wanted if None not in (wanted, self._class) and wanted != self._class else None

    def _join_class(self, ledger: Ledger, spec: RunSpec, job: EngineJob) -> None:
        """Make sure that the run may be computed here, before its model is loaded.

        Raises:
            BackendError: it is for workers of another backend class.
        """
        if spec.backend == ANY:
            return
        self._class = job.backend_class()
        wanted = ledger.join_class(spec, self._class)
        if wanted != self._class:
            raise BackendError(f"the run is for workers of class {wanted}; this one is of class {self._class}")

    def _pass_on(self, message: ShardMessage, wanted: str) -> str:
        """Leave a message to a worker that has what it wants; ever more slowly, while there are only such messages."""
        self._refused = wanted
        # Never in front of what this worker can do: it would take this message again and nothing else.
        mine = Ledger(self._client, message.run_id).terms().priority
        self._send_back(message, max(mine, PRIORITIES[1], key=PRIORITIES.index))
        self._pause(min(REFUSAL_PAUSE_SECONDS * 2**self._refusals_in_row, MAX_REFUSAL_PAUSE_SECONDS))
        self._refusals_in_row += 1
        return "passed on"

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._stopping():
            threading.Event().wait(0.05)

    def _note_start(self, error: SpecmillError) -> None:
        """Give up on an engine that dies again and again before it has its model: another shard would not help."""
        if not isinstance(error, EngineStartError):
            return
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            self._give_up(f"the engine process does not start: {self._failed_starts} attempts in a row; the last one {error}")

    def _fail(self, ledger: Ledger, shard: int, error: SpecmillError) -> str:
        """Record a fault of this worker or of the run, then leave the next message to others for a while."""
        ledger.record_fault(self._fault(shard, error))
        self._pause(min(FAULT_PAUSE_SECONDS * 2**self._faults_in_row, MAX_PAUSE_SECONDS))
        self._faults_in_row += 1
        return "failed"
