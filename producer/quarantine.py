"""`Quarantine`: shards whose engine died too often, and the error rows that stand for them.

An engine that dies on every shard (out of memory while it loads, a broken driver) must not turn a whole dataset into error rows. So
condemned shards wait until some shard has landed; without that, a few of them end the session instead.
"""

import time
from dataclasses import dataclass, field

import pyarrow as pa

from schemas.errors import EngineCrashedError, EngineError, RowError
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.run_spec import RunSpec
from worker.engine.completion import Completion, completions_to_table, requests_from_blob

CONDEMNED_LIMIT = 3  # condemned shards, while nothing has landed, that end the session
NO_BACKEND = Backend(device="none", chip="-", mlx="-", blas="", row_invariant=True)


@dataclass
class Quarantine:
    """The condemned shards of a session.

    Attributes:
        cap: attempts at a shard before it is condemned.
        proven: whether an engine has completed a shard in this session.
        last_message: what the last engine to die said.
        landed: shards whose error rows have landed.
    """

    cap: int
    proven: bool = False
    last_message: str = ""
    landed: list[int] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)

    def is_over_cap(self, attempts: int) -> bool:
        """Whether a shard has had its chances."""
        return attempts >= self.cap

    def condemn(self, shard: int) -> None:
        """The shard gets no further attempt.

        Raises:
            EngineError: as `check`.
        """
        self._waiting.append(shard)
        self.check()

    def check(self) -> None:
        """Make sure that the shards are to blame.

        Raises:
            EngineError: too many are condemned while no shard has landed.
        """
        if not self.proven and len(self._waiting) >= CONDEMNED_LIMIT:
            raise EngineError(
                f"the engine died in all of {self.cap * len(self._waiting)} attempts at {len(self._waiting)} shards and completed none; "
                f"the last time: {self.last_message}"
            )

    @property
    def waiting(self) -> tuple[int, ...]:
        """Condemned shards whose error rows have not landed."""
        return tuple(self._waiting)

    def note_landed(self, shard: int) -> None:
        """The error rows of a condemned shard have landed."""
        self._waiting.remove(shard)
        self.landed.append(shard)

    def error(self) -> EngineCrashedError:
        """The error of every row of a condemned shard; the same words in every run, so that part files are equal."""
        return EngineCrashedError(f"the engine process died in each of {self.cap} attempts at the shard that holds this row")


def error_rows(blob: pa.Table, spec: RunSpec, error: RowError) -> pa.Table:
    """The dataset rows of a shard, schema `row_schema`, all of them error rows."""
    completions = [Completion.failed(request, error) for request in requests_from_blob(blob, spec)]
    return completions_to_table(blob, completions, logprobs=spec.logprobs)


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
