"""`RunFolder`: a dataset's folder while a run writes to it: part files, journal and manifest, in an order that survives a kill."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from producer.attempts_log import AttemptsLog
from producer.certificate_file import certified_versions
from producer.landed_parts import UNKNOWN_BACKEND, backends_of, shard_record
from producer.local_side import journal_folder
from producer.manifest_file import read_manifest, write_manifest
from producer.part_files import check_part, read_parts, remove_stale_files
from schemas.depth_trial import DepthTrial
from schemas.errors import LandingError, RunMismatchError
from schemas.manifest import Manifest, ShardRecord
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.run_spec import RunSpec
from schemas.tables import content_digest
from worker.landing import PartRecord, land_part
from worker.part_names import DATA, INPUTS, LOG, contract_digest, part_name
from worker.remote_path import Place, RemotePath, listed, look_through, parquet_source

LANDING_THREADS = 4
MANIFEST_SECONDS = 3.0
MANIFEST_SHARE = 20  # a manifest that took t seconds to write is not written again for 20 t

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedShard:
    """A shard whose rows are there.

    Attributes:
        shard: its index.
        table: its rows, schema `row_schema`; of a part that is there already their column `error` alone.
        report: what they cost and where they were computed.
        part: what the part file says that its worker has landed itself, or None while the rows are still to be landed.
    """

    shard: int
    table: pa.Table
    report: AttemptReport
    part: PartRecord | None = None


class RunFolder:
    """The folder of one session; the caller holds its `RunLock`.

    Attributes:
        records: landed shards.
        landed: rows and failed rows in them.
    """

    def __init__(self, out: Place, spec: RunSpec) -> None:
        self.records: dict[int, ShardRecord] = {}
        self.landed = Tally()
        self._out = out
        self._spec = spec
        self._contract = contract_digest(spec)
        self._log = AttemptsLog(out / LOG, journal_folder(out))
        self._threads = ThreadPoolExecutor(LANDING_THREADS)  # a sync waits for the disk, and several wait no longer than one
        self._manifest_due = 0.0
        self._depth_trials: tuple[DepthTrial, ...] = ()

    def open(self) -> None:
        """Find what has landed and clear up what an earlier session left half-written.

        Raises:
            RunMismatchError: the folder holds another run.
            LandingError: a part file that is foreign or broken.
        """
        for folder in (self._out, self._out / DATA, self._out / LOG):
            folder.mkdir(parents=True, exist_ok=True)
        for path in remove_stale_files(self._out):
            logger.info("removed %s, left half-written by an earlier session", path)
        manifest = read_manifest(self._out)
        if manifest is not None and (differences := manifest.spec.differences(self._spec)):
            raise RunMismatchError(f"{self._out} holds another run:\n  " + "\n  ".join(differences))
        if manifest is not None:
            self._depth_trials = manifest.depth_trials
        parts = read_parts(self._out, self._spec)
        backends = {record.shard: record.backend for record in manifest.shards} if manifest is not None else {}
        backends |= backends_of(self._log.open())
        for shard, part in parts.items():
            self._remember(part, backends.get(shard, UNKNOWN_BACKEND))
        self.write_manifest("running")

    def land(self, found: Sequence[FinishedShard]) -> None:
        """Journal, then part files: a kill between the two leaves nothing unexplained.

        Raises:
            LandingError: one of them cannot be written.
        """
        self._log.append(*(finished.report for finished in found))
        for finished, part in zip(found, self._threads.map(self._land_part, found), strict=True):
            self._remember(part, finished.report.backend)

    def _land_part(self, finished: FinishedShard) -> PartRecord:
        if finished.part is not None:
            return finished.part
        table = finished.table
        failed = table.num_rows - table.column("error").null_count
        digest = content_digest(table)
        part = PartRecord(contract=self._contract, shard=finished.shard, rows=table.num_rows, failed=failed, content_digest=digest)
        land_part(self._out, part_name(self._spec, finished.shard), table, part)
        return part

    def adopt(self, report: AttemptReport) -> None:
        """Take in the report of a part that its worker has landed here itself while no coordinator was there."""
        record = self.records[report.shard]
        if record.backend == UNKNOWN_BACKEND:
            self._log.append(report)
            self.records[report.shard] = replace(record, backend=report.backend)

    def landed_part(self, shard: int, schema: pa.Schema) -> tuple[PartRecord, pa.Table]:
        """A part that its worker has landed here itself; its rows stay where they are.

        Args:
            shard: shard index.
            schema: what its columns must be.

        Returns:
            What it says of itself, and the column `error`.

        Raises:
            LandingError: it is not there, not whole, another run's, or has other columns.
        """
        path = self._out / part_name(self._spec, shard)
        part = check_part(path, self._spec, self._contract)
        try:
            file = pq.ParquetFile(parquet_source(path), memory_map=False)
            found, errors = file.schema_arrow.remove_metadata(), file.read(columns=["error"])
        except (OSError, pa.ArrowInvalid) as error:
            raise LandingError(f"{path} cannot be read: {error}") from error
        if not found.equals(schema):
            raise LandingError(f"{path} has the columns {found.names}; expected {schema.names}")
        return part, errors

    def write_manifest(self, status: str) -> Manifest:
        """Write `OUT/manifest.json` and return what it says."""
        records = tuple(self.records[shard] for shard in sorted(self.records))
        manifest = Manifest(spec=self._spec, status=status, versions=certified_versions(), shards=records, depth_trials=self._depth_trials)
        started = time.monotonic()
        write_manifest(self._out, manifest)
        now = time.monotonic()
        self._manifest_due = now + max(MANIFEST_SECONDS, MANIFEST_SHARE * (now - started))
        return manifest

    def keep_manifest(self) -> None:
        """Write the manifest again when it is due."""
        if time.monotonic() >= self._manifest_due:
            self.write_manifest("running")

    def clear_up(self) -> None:
        """Remove inputs, and what workers that died have left half-written in a shared folder or a store; every shard has landed."""
        for path in remove_stale_files(self._out):
            logger.info("removed %s, left half-written by a worker", path)
        inputs = self._out / INPUTS
        for _ in look_through(listed(inputs, "shard-*.arrow"), lambda path: path.unlink(missing_ok=True)):
            pass
        if inputs.is_dir() and not any(inputs.iterdir()):
            inputs.rmdir()
        if isinstance(self._out, RemotePath):
            try:
                dropped = self._out.drop_uploads()
            except OSError as error:
                logger.warning("uploads that a worker left unfinished stay: %s", error)
            else:
                logger.info("%d uploads dropped that a worker left unfinished", len(dropped))

    def close(self) -> None:
        """Turn the journal into Parquet."""
        self._threads.shutdown()
        self._log.close()

    def _remember(self, part: PartRecord, backend: Backend) -> None:
        self.records[part.shard] = shard_record(part, part_name(self._spec, part.shard), backend)
        self.landed += Tally(rows=part.rows, failed=part.failed)
