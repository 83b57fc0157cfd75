"""`RecordByRecord`: a shard that ended its engine twice, one record at a time, so that only the record to blame is lost.

Every record is counted in the ledger as deadly before it is begun and taken back when the engine survives it. So the count knows what the
engine was at when it died, also when the whole worker, or its machine, died with it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa

from schemas.errors import EngineCrashedError, RunCancelledError, SpecmillError
from schemas.profile import Backend
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from schemas.tables import table_from_bytes, table_to_bytes
from worker.engine.client import ShardOutcome
from worker.error_rows import error_rows
from worker.ledger import Ledger
from worker.redis_client import BROKER_ERRORS

CHANCES = 2  # deaths of the engine at one record, alone, before the record is an error row
UNPROVEN_DEATHS = 6  # in a worker whose engine has completed nothing of the run yet: then the engine is to blame
BROKER_PATIENCE_SECONDS = 60.0
MESSAGE = f"the engine process died {CHANCES} times while it worked on this record alone"

logger = logging.getLogger(__name__)


class RecordByRecord:
    """One careful attempt at a shard."""

    def __init__(
        self, ledger: Ledger, shard: int, spec: RunSpec, run: Callable[[bytes, Tally], ShardOutcome], backend: Backend, *, proven: bool
    ) -> None:
        """Args.

        Args:
            ledger: the run's.
            shard: shard index.
            spec: the run's.
            run: completes a blob of one record; its second argument counts what the shard has so far.
            backend: where the engine runs, for a shard of which nothing can be completed.
            proven: whether this worker's engine has completed anything of the run before.
        """
        self._ledger = ledger
        self._shard = shard
        self._spec = spec
        self._run = run
        self._proven = proven
        self._deaths: list[int] = []
        self._last_death = "of records that have no chance left"
        self._sum = ShardOutcome(b"", backend, Tally(), 0.0, 0.0, 0.0, 0.0, 0.0, 0)

    def outcome(self, blob: bytes) -> ShardOutcome:
        """The whole shard, in order; a record that kills the engine becomes error rows.

        Raises:
            EngineCrashedError: the engine dies whatever it is given, and has completed nothing of the run here; no record is blamed.
            SpecmillError: as `EngineProcess.generate`.
        """
        records = table_from_bytes(blob)
        tables = [self._rows(records.slice(record, 1), record) for record in range(records.num_rows)]
        if not self._proven:
            self._blame_engine()
        return replace(self._sum, rows=table_to_bytes(pa.concat_tables(tables).combine_chunks()))

    def _rows(self, record_blob: pa.Table, record: int) -> pa.Table:
        while self._may_try(record):
            try:
                outcome = self._run(table_to_bytes(record_blob), self._sum.tally)
            except EngineCrashedError as error:
                logger.warning("record %d of shard %d, alone: %s", record, self._shard, error)
                self._deaths.append(record)
                self._last_death = str(error)
                if not self._proven and len(self._deaths) >= UNPROVEN_DEATHS:
                    self._blame_engine()
                continue
            except SpecmillError:
                self._take_back(record)
                raise
            self._take_back(record)
            self._proven = True
            self._add(outcome)
            return table_from_bytes(outcome.rows)
        rows = error_rows(record_blob, self._spec, EngineCrashedError(MESSAGE))
        self._sum = replace(self._sum, tally=self._sum.tally + Tally(rows=rows.num_rows, failed=rows.num_rows))
        return rows

    def _may_try(self, record: int) -> bool:
        """Count the record as deadly and begin it, unless it has had its chances."""
        begun = self._ledger.begin_record(self._shard, record)
        if begun == 0:
            raise RunCancelledError(f"the run of shard {self._shard} is over")
        if begun > CHANCES:
            self._take_back(record)
        return begun <= CHANCES

    def _take_back(self, record: int) -> None:
        """The engine outlived the record; a broker that is away is waited for, so that nobody is blamed for its absence."""
        deadline = time.monotonic() + BROKER_PATIENCE_SECONDS
        while True:
            try:
                self._ledger.end_record(self._shard, record)
                return
            except BROKER_ERRORS:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def _blame_engine(self) -> NoReturn:
        for record in self._deaths:
            self._take_back(record)
        raise EngineCrashedError(
            f"the engine of this worker died {len(self._deaths)} times and has not completed a single row of this run; "
            f"the last time: {self._last_death}"
        )

    def _add(self, outcome: ShardOutcome) -> None:
        before = self._sum
        self._sum = ShardOutcome(
            rows=b"",
            backend=outcome.backend,
            tally=before.tally + outcome.tally,
            load_seconds=before.load_seconds + outcome.load_seconds,
            prefill_seconds=before.prefill_seconds + outcome.prefill_seconds,
            draft_seconds=before.draft_seconds + outcome.draft_seconds,
            verify_seconds=before.verify_seconds + outcome.verify_seconds,
            commit_seconds=before.commit_seconds + outcome.commit_seconds,
            peak_bytes=max(before.peak_bytes, outcome.peak_bytes),
        )
