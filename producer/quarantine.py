"""`Quarantine`: shards that end their engine, and whether they or the engine are to blame.

A shard that ended its engine twice runs record by record, and the record that kills becomes an error row. But an engine that dies on
everything (out of memory, a broken driver) must not turn a dataset into error rows. So a worker blames no record before its own engine has
completed one, and until some shard has come back in this session, a few deaths end it.
"""

import time
from dataclasses import dataclass, field

import pyarrow as pa

from schemas.errors import EngineCrashedError, EngineError
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.run_spec import RunSpec
from worker.feeder import CAREFUL_AFTER
from worker.keeper import DEATHS_LIMIT

CAREFUL_DEATHS = 3  # what a careful attempt without a result counts for
SPARE_ATTEMPTS = 6  # beyond two for every record, before a shard is condemned whole: whatever kills is no record
NO_BACKEND = Backend(device="none", chip="-", mlx="-", blas="", row_invariant=True)


@dataclass
class Quarantine:
    """The suspects of a session.

    Attributes:
        proven: whether a shard has come back in this session.
        last_message: what the last engine to die said.
        landed: shards with rows that killed their engine.
    """

    proven: bool = False
    last_message: str = ""
    landed: list[int] = field(default_factory=list)
    _deaths: int = 0
    _suspects: set[int] = field(default_factory=set)

    def is_hopeless(self, attempts: int, records: int) -> bool:
        """Whether a shard has had its chances, record by record too."""
        return attempts >= CAREFUL_AFTER + 2 * records + SPARE_ATTEMPTS

    def note_death(self, shard: int, message: str, attempts: int) -> None:
        """An engine died while it had the shard, in so many attempts by now; a careful attempt means several deaths.

        Raises:
            EngineError: too many have died, and none has completed anything.
        """
        self.last_message = message
        self._deaths += 1 if attempts <= CAREFUL_AFTER else CAREFUL_DEATHS
        self._suspects.add(shard)
        if not self.proven and self._deaths >= DEATHS_LIMIT:
            raise EngineError(
                f"the engine died in all of {self._deaths} attempts at {len(self._suspects)} shards and completed none; "
                f"the last time: {self.last_message}"
            )

    def note_result(self, shard: int, table: pa.Table) -> None:
        """The rows of a shard have come back: a worker sends them only when its engine has completed something."""
        self.proven = True
        if EngineCrashedError.__name__ in table.column("error").combine_chunks().field("type").to_pylist():
            self.landed.append(shard)


def hopeless_error() -> EngineCrashedError:
    """The error of every row of a shard that cannot be run at all; the same words in every run, so that part files are equal."""
    return EngineCrashedError("the worker died in every attempt at the shard that holds this row, also record by record")


def quarantine_report(spec: RunSpec, shard: int, attempt: int, rows: int) -> AttemptReport:
    """The report for error rows that no engine made."""
    return AttemptReport(
        run_id=spec.run_id,
        shard=shard,
        attempt=attempt,
        worker="coordinator",
        backend=NO_BACKEND,
        started=time.time(),
        seconds=0.0,
        load_seconds=0.0,
        prefill_seconds=0.0,
        draft_seconds=0.0,
        verify_seconds=0.0,
        commit_seconds=0.0,
        peak_bytes=0,
        tally=Tally(rows=rows, failed=rows),
    )
