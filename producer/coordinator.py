"""`Coordinator`: one session of a run: feeds shards in a window, lands their results, and leaves a folder that can be resumed.

The part files are the truth, the manifest their list. The broker holds only what is in flight: at most `WINDOW` shards per worker, each as
an input blob or as a result, so its memory and ours are bounded whatever the run's size.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import redis
from kombu.exceptions import OperationalError

from producer.attempts_log import AttemptsLog
from producer.calibration import CalibrationWatch
from producer.local_workers import LocalWorkers
from producer.manifest_file import read_manifest, versions, write_manifest
from producer.part_files import DATA, LOG, contract_digest, part_name, read_parts, remove_stale_files
from producer.progress_tracker import ProgressTracker
from producer.quarantine import Quarantine, error_rows, quarantine_report
from producer.reconciler import INTERVAL_SECONDS, Reconciler
from producer.run_progress import Counts, RunProgress
from schemas.errors import BrokerError, DecodeError, EngineCrashedError, RunCancelledError, RunMismatchError
from schemas.manifest import Manifest, ShardRecord
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.run_spec import RunSpec
from schemas.shard import ShardMessage
from schemas.tables import content_digest, row_schema, table_from_bytes
from worker.app import FRESH_PRIORITY, QUEUE, RETRY_PRIORITY, TASK, make_app
from worker.landing import PartRecord, land_part
from worker.lease import LEASE_SECONDS
from worker.ledger import Ledger
from worker.redis_client import BROKER_ERRORS, make_client, masked
from worker.reports import Fault

WINDOW = 4  # shards in flight per worker: one in work, the others so that it never waits for us
ATTEMPT_CAP = 3  # attempts at a shard before its rows become error rows
FAULT_LIMIT = 3  # faults in a row, without a landed shard between them, that end the session
WAIT_SECONDS = 0.2  # longest wait for a result; also how late a stop may be noticed
PROGRESS_SECONDS = 0.25
REFRESH_SECONDS = 60.0
MANIFEST_SECONDS = 3.0
MANIFEST_SHARE = 20  # a manifest that took t seconds to write is not written again for 20 t
OUTAGE_PAUSE_SECONDS = 0.2
UNKNOWN_BACKEND = Backend(device="-", chip="-", mlx="-", blas="", row_invariant=False)

logger = logging.getLogger(__name__)


class Shards(Protocol):
    """Where inputs come from: `producer.shards.ShardSource`."""

    @property
    def blob_schema(self) -> pa.Schema:
        """The schema of every blob."""

    def blob(self, shard: int) -> bytes:
        """A shard's input as an Arrow IPC stream, in any order and as often as asked."""


class Coordinator:
    """One session; the caller holds the folder's `RunLock`, and keeps broker and workers up while it runs."""

    def __init__(
        self,
        spec: RunSpec,
        out: Path,
        broker_url: str,
        shards: Shards,
        on_progress: Callable[[RunProgress], None] = lambda _: None,
        *,
        workers: LocalWorkers | None = None,
        attempt_cap: int = ATTEMPT_CAP,
        lease_seconds: float = LEASE_SECONDS,
        calibration: CalibrationWatch | None = None,
    ) -> None:
        """Args.

        Args:
            spec: the run; where the folder holds a manifest, its contract must be the same. On a resume, keep the manifest's `run_id`.
            out: the dataset's folder.
            broker_url: Redis for queue and ledger.
            shards: the inputs.
            on_progress: called about four times a second, and once at the end.
            workers: started here and tended by this session; None when all workers are elsewhere.
            attempt_cap: attempts at a shard before its rows become error rows, ≥ 1.
            lease_seconds: the workers' lease time.
            calibration: ends the session when an engine contradicts itself; None lets it go on.
        """
        self.spec = spec
        self._out = out
        self._broker_url = broker_url
        self._shards = shards
        self._on_progress = on_progress
        self._workers = workers
        self._lease_seconds = lease_seconds
        self._calibration = calibration
        self._client = make_client(broker_url)
        self._ledger = Ledger(self._client, spec.run_id)
        self._app = make_app(broker_url)
        self._log = AttemptsLog(out / LOG)
        self._contract = contract_digest(spec)
        self._schema = row_schema(shards.blob_schema, logprobs=spec.logprobs)
        self._records: dict[int, ShardRecord] = {}
        self._landed_rows = Tally()
        self._issued: set[int] = set()
        self._fresh: Iterator[int] = iter(())
        self._faults_in_row = 0
        self._quarantine = Quarantine(attempt_cap)
        self._ending: str | None = None
        self._reconciler = Reconciler(self._client, spec.run_id, lease_seconds=lease_seconds)
        self._tracker = ProgressTracker(Tally())
        self._in_contact = True
        self._due = dict.fromkeys(("progress", "reconcile", "refresh", "manifest"), 0.0)

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Shards whose rows became error rows in this session because their engine died too often."""
        return tuple(self._quarantine.landed)

    def counts(self) -> Counts:
        """The ledger in output rows: total == ok + failed + cancelled + pending, at every moment."""
        total = self.spec.records * self.spec.samples
        landed, failed = self._landed_rows.rows, self._landed_rows.failed
        cancelled = total - landed if self._ending == "cancelling" else 0
        return Counts(total=total, ok=landed - failed, failed=failed, cancelled=cancelled, pending=total - landed - cancelled)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Manifest:
        """Work until every shard has landed, `stop()` says True, or somebody sets the run's cancel flag.

        Returns:
            The manifest as it lies in the folder, its status `complete` or `cancelled`. A cancelled run resumes with the same call.

        Raises:
            RunMismatchError: the folder holds another run.
            LandingError: a part file that cannot be written, or one that is foreign or broken.
            InputError: the prompts file has changed.
            BrokerError: the broker cannot be reached at the start, or refuses a command.
            CalibrationError: an engine that contradicts itself; its last shard is not landed.
            ModelError, EngineError, DecodeError: what workers report again and again; the message names the worker.
        """
        self._open_folder()
        try:
            self._ledger.open(self.spec, self._records)
            self._work(stop)
            self._log.close()
            return self._write_manifest("cancelled" if self._ending == "cancelling" else "complete")
        except (*BROKER_ERRORS, OperationalError, redis.ResponseError) as error:
            raise BrokerError(f"the broker {masked(self._broker_url)}: {error}") from error
        finally:
            self._close()

    # The folder.

    def _open_folder(self) -> None:
        for folder in (self._out, self._out / DATA, self._out / LOG):
            folder.mkdir(parents=True, exist_ok=True)
        for path in remove_stale_files(self._out):
            logger.info("removed %s, left half-written by an earlier session", path)
        manifest = read_manifest(self._out)
        if manifest is not None and (differences := manifest.spec.differences(self.spec)):
            raise RunMismatchError(f"{self._out} holds another run:\n  " + "\n  ".join(differences))
        parts = read_parts(self._out, self.spec)
        backends = {record.shard: record.backend for record in manifest.shards} if manifest is not None else {}
        backends |= {report.shard: report.backend for report in self._log.open()}
        for shard, part in parts.items():
            self._remember(part, backends.get(shard, UNKNOWN_BACKEND))
        self._fresh = (shard for shard in range(self.spec.shards) if shard not in self._records)
        self._tracker = ProgressTracker(self._landed_rows)
        self._write_manifest("running")

    def _remember(self, part: PartRecord, backend: Backend) -> None:
        self._records[part.shard] = ShardRecord(
            shard=part.shard,
            file=part_name(self.spec, part.shard),
            rows=part.rows,
            failed=part.failed,
            content_digest=part.content_digest,
            backend=backend,
        )
        self._landed_rows += Tally(rows=part.rows, failed=part.failed)

    def _write_manifest(self, status: str) -> Manifest:
        records = tuple(self._records[shard] for shard in sorted(self._records))
        manifest = Manifest(spec=self.spec, status=status, versions=versions(), shards=records)
        started = time.monotonic()
        write_manifest(self._out, manifest)
        now = time.monotonic()
        self._due["manifest"] = now + max(MANIFEST_SECONDS, MANIFEST_SHARE * (now - started))
        return manifest

    # The session.

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
        self._ending = self._ending or "done"
        self._show_progress()

    def _feed(self) -> None:
        """Keep the window full; condemned shards wait outside it for proof that an engine can work at all."""
        workers = max(1, len(self._workers or ()), self._tracker.workers_heard(self._issued))
        while len(self._issued) < WINDOW * workers:
            shard = next(self._fresh, None)
            if shard is None:
                break
            try:
                self._issue(shard)
            except BaseException:
                self._fresh = itertools.chain([shard], self._fresh)
                raise
        if not self._issued:
            self._land_condemned()

    def _issue(self, shard: int) -> None:
        """Hand a shard out, unless an earlier session did and its result or its worker is still there."""
        if self._ledger.states([shard])[shard] == "absent":
            self._ledger.issue(shard, self._shards.blob(shard))
            self._send(shard, FRESH_PRIORITY)
        self._issued.add(shard)

    def _send(self, shard: int, priority: int) -> None:
        message = ShardMessage(run_id=self.spec.run_id, shard=shard)
        self._app.send_task(
            TASK, args=(message.encode(),), queue=QUEUE, priority=priority, ignore_result=True, argsrepr=f"{message.run_id}/{shard}"
        )

    def _retry(self, shard: int) -> None:
        """An attempt ended without a result and nobody holds the shard: try again, or give it up."""
        if shard in self._records or shard not in self._issued:
            return
        if self._quarantine.is_over_cap(attempts := self._ledger.attempts(shard)):
            logger.error("shard %d ended its engine in %d attempts: its rows become error rows", shard, attempts)
            self._quarantine.condemn(shard)
            self._issued.discard(shard)
            if self._quarantine.proven:
                self._land_condemned()
            return
        # The source may have been asked long ago, and the blob may be gone with the broker's memory.
        self._ledger.issue(shard, self._shards.blob(shard))
        self._send(shard, RETRY_PRIORITY)

    def _land_condemned(self) -> None:
        self._quarantine.check()
        for shard in self._quarantine.waiting:
            table = error_rows(table_from_bytes(self._shards.blob(shard)), self.spec, self._quarantine.error())
            self._land(shard, table, quarantine_report(self.spec, shard, self._quarantine.cap, table.num_rows))
            self._quarantine.note_landed(shard)

    # What comes back.

    def _collect(self) -> None:
        """Wait a little for one result or fault and deal with it."""
        entry = self._ledger.next_entry(WAIT_SECONDS)
        if isinstance(entry, Fault):
            self._handle_fault(entry)
        elif entry is not None:
            self._land_result(entry)

    def _land_result(self, shard: int) -> None:
        if shard in self._records or not 0 <= shard < self.spec.shards:
            self._ledger.settle(shard)  # a second result of a landed shard says the same
            return
        try:
            waiting = self._ledger.result(shard)
            if waiting is None:
                return
            rows, report = waiting
            table = self._checked(shard, rows)
        except (DecodeError, pa.ArrowInvalid) as error:
            self._ledger.drop_result(shard)
            self._handle_fault(Fault(worker="-", shard=shard, kind="EngineError", message=f"shard {shard} came back unreadable: {error}"))
            return
        if self._calibration is not None:
            self._calibration.check(report)
        self._land(shard, table, report)
        self._faults_in_row = 0
        if self._workers is not None:
            self._workers.note_landed(report.worker)
        if not self._quarantine.proven:
            self._quarantine.proven = True
            self._land_condemned()

    def _checked(self, shard: int, rows: bytes) -> pa.Table:
        table = table_from_bytes(rows)
        expected = self.spec.shard_records(shard) * self.spec.samples
        if table.num_rows != expected or not table.schema.equals(self._schema):
            raise DecodeError(f"{table.num_rows} rows of the columns {table.column_names}; expected {expected} of {self._schema.names}")
        return table

    def _land(self, shard: int, table: pa.Table, report: AttemptReport) -> None:
        """Journal, part file, memory, ledger: in this order, so that a kill between any two leaves nothing unexplained."""
        failed = table.num_rows - table.column("error").null_count
        part = PartRecord(contract=self._contract, shard=shard, rows=table.num_rows, failed=failed, content_digest=content_digest(table))
        self._log.append(report)
        land_part(self._out, part_name(self.spec, shard), table, part)
        self._remember(part, report.backend)
        self._tracker.landed(report)
        self._issued.discard(shard)
        self._ledger.settle(shard)

    def _handle_fault(self, fault: Fault) -> None:
        if fault.kind == EngineCrashedError.__name__:
            logger.warning("%s: %s", fault.worker, fault.message)
            self._quarantine.last_message = f"worker {fault.worker}: {fault.message}"
        elif fault.kind != RunCancelledError.__name__:  # that is a worker which was told to end
            self._faults_in_row += 1
            logger.warning("worker %s: %s: %s", fault.worker, fault.kind, fault.message)
            if self._faults_in_row >= FAULT_LIMIT:
                raise fault.as_error()
        self._retry(fault.shard)

    # What happens beside it.

    def _do_what_is_due(self) -> None:
        if self._is_due("progress", PROGRESS_SECONDS):
            self._tracker.heard(self._ledger.live())
            if self._ledger.cancelled():
                self._ending = "cancelling"
            self._show_progress()
        if self._is_due("reconcile", INTERVAL_SECONDS):
            self._reconcile()
        if self._is_due("refresh", REFRESH_SECONDS):
            self._ledger.refresh()
        if time.monotonic() >= self._due["manifest"]:
            self._write_manifest("running")

    def _is_due(self, name: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._due[name]:
            return False
        self._due[name] = now + seconds
        return True

    def _reconcile(self) -> None:
        if not self._ledger.is_open():
            logger.warning("the broker has forgotten the run; everything in flight is handed out again")
            self._ledger.open(self.spec, self._records)
            self._fresh = itertools.chain(sorted(self._issued), self._fresh)
            self._issued.clear()
            return
        findings = self._reconciler.look(self._issued)
        for shard in findings.finished:
            self._land_result(shard)
        for shard in findings.lost:
            logger.warning("shard %d was lost with its worker or its message; handed out again", shard)
            self._retry(shard)

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
                ending=self._ending,
            )
        )

    def _close(self) -> None:
        """Leave nothing of the run in the broker, and everything in the folder."""
        try:
            self._ledger.close()
        except BROKER_ERRORS as error:
            logger.warning("the run's keys stay in the broker until their time is up: %s", error)
        finally:
            self._log.close()
            self._app.close()
            self._client.close()
