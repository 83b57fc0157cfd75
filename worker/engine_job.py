"""`EngineJob`: one shard through the engine: load, then the whole of it or record by record, watched all the time."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from schemas.errors import EngineCrashedError, EngineStartError, RunCancelledError
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from worker.crash_kind import crash_kind
from worker.engine.client import EngineProcess, ShardOutcome
from worker.engine_watch import EngineWatch
from worker.ledger import Ledger
from worker.patience import STALL_SECONDS
from worker.record_by_record import RecordByRecord

LOAD_SECONDS = 600.0  # a large model from a slow disk says nothing for minutes

T = TypeVar("T")


class EngineJob:
    """What the task asks of the engine for one shard."""

    def __init__(
        self,
        engine: EngineProcess,
        spec: RunSpec,
        shard: int,
        *,
        on_tally: Callable[[Tally], None],
        stopped: Callable[[], bool],
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """Args are those of `EngineProcess.generate`, and the watch's `stall_seconds`."""
        self._engine = engine
        self._spec = spec
        self._shard = shard
        self._on_tally = on_tally
        self._stopped = stopped
        self._stall_seconds = stall_seconds
        self._load_seconds = 0.0

    def load(self) -> None:
        """Have the model loaded.

        Raises:
            EngineStartError: the child died of it; no shard is to blame.
            RunCancelledError, ModelError, HeadError, EngineError: as `EngineProcess.load`.
        """
        started = time.perf_counter()
        self._backend = self._starting(lambda watch: self._engine.load(self._spec, stopped=self._asking(watch)))
        self._load_seconds = time.perf_counter() - started

    def backend_class(self) -> str:
        """The backend class of this worker, before anything is loaded; errors as in `load`."""
        return self._starting(lambda watch: self._engine.backend_class(self._spec, stopped=self._asking(watch)))

    def whole(self, blob: bytes) -> ShardOutcome:
        """The shard as it should be done; errors as `EngineProcess.generate`."""
        return self._timed(self._run(blob, Tally()))

    def careful(self, blob: bytes, ledger: Ledger, *, proven: bool) -> ShardOutcome:
        """The shard record by record; errors as `RecordByRecord.outcome`."""
        return self._timed(RecordByRecord(ledger, self._shard, self._spec, self._run, self._backend, proven=proven).outcome(blob))

    def _starting(self, call: Callable[[EngineWatch], T]) -> T:
        try:
            return self._watched(call, self._stall_seconds and max(self._stall_seconds, LOAD_SECONDS))
        except EngineCrashedError as error:
            raise EngineStartError(f"while it loaded {self._spec.model.name}: {error}") from error

    def _run(self, blob: bytes, before: Tally) -> ShardOutcome:
        def call(watch: EngineWatch) -> ShardOutcome:
            def on_tally(tally: Tally) -> None:
                watch.progress(tally)
                self._on_tally(before + tally)

            return self._engine.generate(self._spec, self._shard, blob, on_tally=on_tally, stopped=self._asking(watch))

        return self._watched(call, self._stall_seconds)

    def _asking(self, watch: EngineWatch) -> Callable[[], bool]:
        def stopped() -> bool:
            if wanted := self._stopped():
                watch.giving_up()
            return wanted

        return stopped

    def _watched(self, call: Callable[[EngineWatch], T], stall_seconds: float) -> T:
        with EngineWatch(self._engine, stall_seconds) as watch:
            try:
                return call(watch)
            except EngineCrashedError as error:
                if self._stopped():
                    raise RunCancelledError(f"shard {self._shard} was given up, and with it an engine that {watch.verdict}") from error
                kind = f"it {watch.verdict} and was killed" if watch.verdict else crash_kind(str(error))
                raise EngineCrashedError(f"{kind}: {error}") from error

    def _timed(self, outcome: ShardOutcome) -> ShardOutcome:
        return replace(outcome, load_seconds=outcome.load_seconds + self._load_seconds)
