"""`Coordinator`: one session of a run: feeds shards in a window, lands their results, and leaves a folder that can be resumed.

The part files are the truth, the manifest their list. The broker holds only what is in flight: at most `WINDOW` shards per worker, each as
an input blob or as a result, so its memory and ours are bounded whatever the run's size.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import redis
from kombu.exceptions import OperationalError

from producer.backend_rule import BackendRule
from producer.keepership import KEEP_SECONDS, Keepership
from producer.local_workers import LocalWorkers
from producer.progress_tracker import ProgressTracker
from producer.quarantine import Quarantine, hopeless_error, quarantine_report
from producer.run_folder import FinishedShard, RunFolder
from producer.run_progress import Counts, RunProgress
from producer.shards import Shards
from producer.waiting_note import WaitingNote
from schemas.errors import BackendError, DecodeError, EngineCrashedError, LandingError, RunCancelledError
from schemas.manifest import Manifest
from schemas.run_spec import RunSpec
from schemas.tables import row_schema, table_from_bytes
from worker.app import make_app
from worker.calibration import CalibrationWatch
from worker.error_rate import ErrorRate, failures_of
from worker.error_rows import error_rows
from worker.feeder import WINDOW, Feeder
from worker.fleet import Fleet
from worker.keeper import FAULTS_IN_ROW
from worker.ledger import Ledger
from worker.patience import LEASE_SECONDS
from worker.reconciler import INTERVAL_SECONDS, Reconciler
from worker.redis_client import BROKER_ERRORS, make_client, masked, unusable
from worker.remote_path import Place
from worker.reports import Fault
from worker.run_terms import DEFAULT_MAX_ERROR_RATE, PRIORITIES, RunTerms

LANDED_TOGETHER = 4  # results that wait share the disk's syncs
WAIT_SECONDS = 0.2  # longest wait for a result; also how late a stop may be noticed
PROGRESS_SECONDS = 0.25
REFRESH_SECONDS = 60.0
OUTAGE_PAUSE_SECONDS = 0.2

logger = logging.getLogger(__name__)


class Coordinator:
    """One session; the caller holds the folder's `RunLock`, and keeps broker and workers up while it runs."""

    def __init__(
        self,
        spec: RunSpec,
        out: Place,
        broker_url: str,
        shards: Shards,
        on_progress: Callable[[RunProgress], None] = lambda _: None,
        *,
        workers: LocalWorkers | None = None,
        max_error_rate: float = DEFAULT_MAX_ERROR_RATE,
        shared: bool = False,
        lease_seconds: float = LEASE_SECONDS,
        calibration: CalibrationWatch | None = None,
        priority: str = PRIORITIES[1],
    ) -> None:
        """Args.

        Args:
            spec: the run; where the folder holds a manifest, its contract must be the same. On a resume, keep the manifest's `run_id`.
            out: the dataset's folder.
            broker_url: Redis for queue and ledger.
            shards: the inputs.
            on_progress: called about four times a second, and once at the end.
            workers: started here and tended by this session; None when all workers are elsewhere.
            shared: workers may land parts in `out` themselves, if they see it.
            max_error_rate: largest share of failed rows, 0 to 1, judged after the first few.
            lease_seconds: the workers' lease time.
            calibration: ends the session when an engine contradicts itself; None lets it go on.
            priority: of the run among those of the broker, one of `worker.run_terms.PRIORITIES`.
        """
        self.spec = spec
        self._folder = RunFolder(out, spec)
        self._shared = str(out.resolve()) if shared else None
        self._records = self._folder.records
        self._broker_url = broker_url
        self._shards = shards
        self._on_progress = on_progress
        self._workers = workers
        self._lease_seconds = lease_seconds
        self._calibration = calibration
        self._client = make_client(broker_url)
        self._ledger = Ledger(self._client, spec.run_id)
        self._app = make_app(broker_url)
        self._feeder = Feeder(self._app, spec.run_id, priority)
        self._terms = RunTerms(priority, max_error_rate, calibration is not None)
        self._fleet = Fleet(self._client)
        self._keepership = Keepership(self._client, spec.run_id)
        self._schema = row_schema(shards.blob_schema, logprobs=spec.logprobs)
        self._issued: set[int] = set()
        self._ours: set[int] = set()  # those of them that this session has handed out, and no session before it
        self._fresh: Iterator[int] = iter(())
        self._faults_in_row = 0
        self._quarantine = Quarantine()
        self._error_rate = ErrorRate(max_error_rate)
        self._backend_rule = BackendRule.of(spec)
        self._waiting_note = WaitingNote(self._client, spec.run_id)
        self._ending: str | None = None
        self._paused = False
        self._reconciler = Reconciler(self._client, spec.run_id, lease_seconds=lease_seconds)
        self._tracker = ProgressTracker(self._folder.landed)
        self._in_contact = True
        self._due = dict.fromkeys(("progress", "keep", "reconcile", "refresh"), 0.0)

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Shards with rows that became error rows in this session because their engine died of them."""
        return tuple(self._quarantine.landed)

    def counts(self) -> Counts:
        """The ledger in output rows: total == ok + failed + cancelled + pending, at every moment."""
        total = self.spec.records * self.spec.samples
        landed, failed = self._folder.landed.rows, self._folder.landed.failed
        cancelled = total - landed if self._ending == "cancelling" else 0
        return Counts(total=total, ok=landed - failed, failed=failed, cancelled=cancelled, pending=total - landed - cancelled)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Manifest:
        """Work until every shard has landed, `stop()` says True, or somebody sets the run's cancel flag.

        Returns:
            The manifest as it lies in the folder, its status `complete` or `cancelled`. A cancelled run resumes with the same call.

        Raises:
            RunMismatchError: the folder holds another run.
            BackendError: part files there are of another backend class than the run wants.
            LandingError: a part file that cannot be written, or one that is foreign or broken.
            InputError: the prompts file has changed.
            BrokerError: the broker cannot be reached at the start, or refuses a command; or another coordinator runs this run.
            CalibrationError: an engine that contradicts itself; its last shard is not landed.
            ModelError, EngineError, DecodeError: what workers report again and again; the message names the worker.
            TooManyErrorsError: the run is plainly misconfigured.
        """
        self._folder.open()
        self._backend_rule.check_landed(self._records.values())
        self._fresh = (shard for shard in range(self.spec.shards) if shard not in self._records)
        self._tracker = ProgressTracker(self._folder.landed)
        try:
            self._keepership.take_over(stop)
            self._open_ledger()
            self._work(stop)
            self._folder.close()
            return self._folder.write_manifest("cancelled" if self._ending == "cancelling" else "complete")
        except (*BROKER_ERRORS, OperationalError, redis.ResponseError) as error:
            raise unusable(self._broker_url, error) from error
        finally:
            self._close()

    def _open_ledger(self) -> None:
        for shard in self._ledger.finished() & self._records.keys():
            # Its worker landed it itself, and nobody has heard its report yet.
            if (result := self._ledger.result(shard)) is not None:
                self._folder.adopt(result[1])
        self._ledger.open(self.spec, self._records)
        self._ledger.set_terms(self._terms)
        if self._shared is not None:
            self._ledger.share(self._shared)
        self._backend_rule.announce(self._ledger)
        self._fleet.add_run(self.spec.run_id)

    def _work(self, stop: Callable[[], bool]) -> None:
        while len(self._records) < self.spec.shards:
            if stop():
                self._ending = "cancelling"
                break
            try:
                self._feed()
                self._collect()
                self._do_what_is_due()
                self._in_contact = True
            except (*BROKER_ERRORS, OperationalError) as error:
                self._outage(error)
            if self._ending:
                break
            self._tend_workers()
        if len(self._records) == self.spec.shards:
            self._folder.clear_up()
        self._ending = self._ending or "done"
        self._show_progress()

    def _feed(self) -> None:
        """Keep the window full."""
        workers = max(1, len(self._workers or ()), self._tracker.workers_heard(self._issued))
        while len(self._issued) < WINDOW * workers and not self._paused:
            shard = next(self._fresh, None)
            if shard is None:
                break
            try:
                self._issue(shard)
            except BaseException:
                self._fresh = itertools.chain([shard], self._fresh)
                raise

    def _issue(self, shard: int) -> None:
        """Hand a shard out, unless an earlier session did and its result or its worker is still there."""
        if self._ledger.states([shard])[shard] == "absent":
            self._ledger.issue(shard, self._shards.blob(shard))
            self._feeder.send(shard)
            self._ours.add(shard)
        self._issued.add(shard)

    def _retry(self, shard: int) -> None:
        """An attempt ended without a result and nobody holds the shard: try again, or give it up."""
        if shard in self._records or shard not in self._issued:
            return
        if self._quarantine.is_hopeless(self._ledger.attempts(shard), self.spec.shard_records(shard)):
            logger.error("shard %d ended its worker in every attempt, also record by record: its rows become error rows", shard)
            table = error_rows(table_from_bytes(self._shards.blob(shard)), self.spec, hopeless_error())
            report = quarantine_report(self.spec, shard, self._ledger.attempts(shard), table.num_rows)
            self._land([FinishedShard(shard, table, report)])
            self._quarantine.landed.append(shard)
            return
        self._tracker.count("retries")
        # The source may have been asked long ago, and the blob may be gone with the broker's memory.
        self._feeder.send_again(self._ledger, shard, self._shards.blob(shard))

    def _collect(self) -> None:
        """Wait a little for results or a fault and deal with them."""
        entry = self._ledger.next_entry(WAIT_SECONDS)
        if isinstance(entry, Fault):
            self._handle_fault(entry)
        elif entry is not None:
            self._land_results([entry, *self._ledger.more_results(LANDED_TOGETHER - 1)])

    def _land_results(self, shards: Iterable[int]) -> None:
        found: list[FinishedShard] = []
        try:
            for shard in dict.fromkeys(shards):
                if (finished := self._result(shard)) is not None:
                    found.append(finished)
        finally:
            if found:
                self._land(found)

    def _result(self, shard: int) -> FinishedShard | None:
        """A result that waits and is what the shard should be."""
        if shard in self._records or not 0 <= shard < self.spec.shards:
            self._ledger.settle(shard)  # a second result of a landed shard says the same
            return None
        try:
            waiting = self._ledger.result(shard)
            if waiting is None:
                return None
            rows, report = waiting
            self._backend_rule.check_result(report.worker, report.backend, self._ledger)
            part = None
            if rows:
                table = self._checked(shard, table_from_bytes(rows))
            else:
                part, table = self._folder.landed_part(shard, self._schema)
        except (BackendError, DecodeError, LandingError, pa.ArrowInvalid) as error:
            self._ledger.drop_result(shard)
            self._handle_fault(Fault(worker="-", shard=shard, kind="EngineError", message=f"shard {shard} came back unusable: {error}"))
            return None
        self._quarantine.note_result(shard, table)
        if self._calibration is not None:
            self._calibration.check(report)
        self._faults_in_row = 0
        if self._workers is not None:
            self._workers.note_landed(report.worker)
        return FinishedShard(shard, table, report, part)

    def _checked(self, shard: int, table: pa.Table) -> pa.Table:
        expected = self.spec.shard_records(shard) * self.spec.samples
        if table.num_rows != expected or not table.schema.equals(self._schema):
            raise DecodeError(f"{table.num_rows} rows of the columns {table.column_names}; expected {expected} of {self._schema.names}")
        return table

    def _land(self, found: list[FinishedShard]) -> None:
        """Journal, part files, memory, ledger: in this order, so that a kill between any two leaves nothing unexplained."""
        self._folder.land(found)
        for finished in found:
            self._tracker.landed(finished.report, ours=finished.shard in self._ours)
            self._issued.discard(finished.shard)
            self._ours.discard(finished.shard)
            self._ledger.settle(finished.shard)
            self._error_rate.add(finished.report.tally.rows, *failures_of(finished.table))

    def _handle_fault(self, fault: Fault) -> None:
        if fault.kind == EngineCrashedError.__name__:
            logger.warning("worker %s: shard %d: %s", fault.worker, fault.shard, fault.message)
            self._tracker.count("engine_restarts")
            self._quarantine.note_death(fault.shard, f"worker {fault.worker}: {fault.message}", self._ledger.attempts(fault.shard))
        elif fault.kind != RunCancelledError.__name__:  # that is a worker which was told to end
            self._faults_in_row += 1
            logger.warning("worker %s: %s: %s", fault.worker, fault.kind, fault.message)
            if self._faults_in_row >= FAULTS_IN_ROW * (10 if self._somebody_works() else 1):
                raise fault.as_error()
        self._retry(fault.shard)

    def _somebody_works(self) -> bool:
        """Whether a shard is in work, so that one broken machine does not end a session that goes well elsewhere."""
        return "leased" in self._ledger.states(self._issued).values()

    def _do_what_is_due(self) -> None:
        if self._is_due("progress", PROGRESS_SECONDS):
            self._tracker.heard(self._ledger.live())
            if self._ledger.cancelled():
                self._ending = "cancelling"
            self._note_pause(self._ledger.paused())
            self._show_progress()
        if self._is_due("keep", KEEP_SECONDS):
            self._keepership.renew()
        if self._is_due("reconcile", INTERVAL_SECONDS) and not self._paused:
            self._reconcile()
        if self._is_due("refresh", REFRESH_SECONDS):
            self._ledger.refresh()
        self._folder.keep_manifest()

    def _note_pause(self, reason: str | None) -> None:
        if reason is not None and not self._paused:
            logger.warning("the run is paused (%s); `specmill resume` lets it go on", reason)
        elif reason is None and self._paused:
            for shard in self._reconciler.adrift(self._issued):
                self._retry(shard)
        self._paused = reason is not None

    def _is_due(self, name: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._due[name]:
            return False
        self._due[name] = now + seconds
        return True

    def _reconcile(self) -> None:
        if not self._ledger.is_open():
            logger.warning("the broker has forgotten the run; everything in flight is handed out again")
            self._open_ledger()
            self._fresh = itertools.chain(sorted(self._issued), self._fresh)
            self._issued.clear()
            return
        findings = self._reconciler.look(self._issued)
        self._land_results(findings.finished)
        for shard in findings.lost:
            logger.warning("shard %d was lost with its worker or its message; handed out again", shard)
            self._tracker.count("lease_losses")
            self._retry(shard)
        self._waiting_note.look()

    def _tend_workers(self) -> None:
        """Local workers that died: what they had goes to others now, not when its time is up."""
        dead = self._workers.tend() if self._workers is not None else []
        try:
            for name in dead:
                self._ledger.forget_worker(name)
                for shard in sorted(self._issued):
                    if self._ledger.release(shard, f"{name}/"):
                        self._retry(shard)
            for shard in self._reconciler.adrift(self._issued) if dead else ():
                self._retry(shard)
        except (*BROKER_ERRORS, OperationalError) as error:
            self._outage(error)

    def _outage(self, error: Exception) -> None:
        if self._in_contact:
            logger.warning("the broker %s does not answer (%s); waiting for it", masked(self._broker_url), error)
        self._in_contact = False
        self._reconciler.contact_broken()
        time.sleep(OUTAGE_PAUSE_SECONDS)

    def _show_progress(self) -> None:
        self._on_progress(
            self._tracker.snapshot(
                self.counts(),
                shards_total=self.spec.shards,
                shards_done=len(self._records),
                issued=self._issued,
                ending=self._ending or ("paused" if self._paused else None),
            )
        )

    def _close(self) -> None:
        """Leave nothing of the run in the broker, and everything in the folder; a submitted run goes on without us."""
        try:
            if self._keepership.held and (len(self._records) == self.spec.shards or not self._ledger.is_submitted()):
                self._ledger.close()
                self._fleet.remove_run(self.spec.run_id)
            self._keepership.leave()
        except BROKER_ERRORS as error:
            logger.warning("the run's keys stay in the broker until their time is up: %s", error)
        finally:
            self._folder.close()
            self._app.close()
            self._client.close()
