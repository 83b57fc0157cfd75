"""`ProgressTracker`: landed reports and live reports of workers, added up into `RunProgress`."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping

from producer.run_progress import Counts, Events, RunProgress, WorkerView
from schemas.progress import AttemptReport, Tally
from worker.reports import LiveReport

SILENT_SECONDS = 30.0  # a worker that has not reported for so long, and works on nothing we wait for, is not shown
RATE_SECONDS = 1.0  # reports come about once a second; over less than that a rate is an accident


class ProgressTracker:
    """One session's numbers; knows nothing of Redis."""

    def __init__(self, resumed: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        """`resumed` has the rows and failed rows of the parts that were there before; `clock` counts seconds."""
        self._clock = clock
        self._began = clock()
        self._first_work: float | None = None
        self._reading: tuple[float, int] | None = None  # when prompts were first seen to be read, and how many tokens by then
        self._resumed = resumed
        self._collected = Tally()  # says nothing about the speed of this session
        self._landed = Tally()
        self._live: dict[str, tuple[LiveReport, float]] = {}
        self._events: Counter[str] = Counter()

    def landed(self, report: AttemptReport, *, ours: bool = True) -> None:
        """A shard has landed; it is not ours where it was handed out before this session, as those of a submitted run are."""
        if not ours:
            self._collected += report.tally
            return
        self._landed += report.tally
        if self._first_work is None:
            # Its whole work lies before this moment: count from when it began, model loading aside.
            self._first_work = self._clock() - max(0.0, report.seconds - report.load_seconds)

    def count(self, event: str) -> None:
        """One more of a field of `Events`."""
        self._events[event] += 1

    def heard(self, live: Mapping[str, LiveReport]) -> None:
        """The workers' present live reports."""
        now = self._clock()
        if self._first_work is None and (working := [worker for worker, report in live.items() if report.tally.completion_tokens]):
            # The tokens were made since the report before this one.
            self._first_work = min(self._live[worker][1] if worker in self._live else now for worker in working)
        self._live = {
            worker: (report, now) if worker not in self._live or self._live[worker][0] != report else self._live[worker]
            for worker, report in live.items()
        }

    def workers_heard(self, issued: Container[int]) -> int:
        """Number of workers that are not silent, or hold a shard in flight."""
        return len(self._talking(issued))

    def snapshot(self, counts: Counts, *, shards_total: int, shards_done: int, issued: Collection[int], ending: str | None) -> RunProgress:
        """The run now.

        Args:
            counts: the ledger in rows.
            shards_total: shards of the run.
            shards_done: landed shards.
            issued: shards in flight; the tallies of others are landed already.
            ending: `cancelling` or `done` when the run is past generating.
        """
        now = self._clock()
        workers = tuple(
            WorkerView(name, report.shard, report.tally if report.shard in issued else Tally(), report.backend)
            for name, report in sorted(self._talking(issued).items())
        )
        live = sum((view.tally for view in workers), Tally())
        session = self._landed + live
        seconds = now - self._first_work if self._first_work is not None else 0.0
        left = counts.pending - live.rows
        measured = seconds >= RATE_SECONDS
        rate = session.rows / seconds if measured else 0.0
        eta = max(0, left) / rate if rate > 0 else None
        phase = "generating" if self._first_work is not None or self._collected.rows else "loading model"
        if self._first_work is None and live.prompt_tokens:
            eta, phase = self._reading_left(live, now), "reading prompts"
        return RunProgress(
            rows_total=counts.total,
            rows_ok=counts.ok,
            rows_failed=counts.failed,
            shards_total=shards_total,
            shards_done=shards_done,
            in_flight=len(issued),
            tally=self._resumed + self._collected + session,
            tokens_per_second=session.completion_tokens / seconds if measured else 0.0,
            eta_seconds=eta,
            elapsed=now - self._began,
            workers=workers,
            phase=ending or phase,
            queued=len(set(issued) - {view.shard for view in workers}),
            events=Events(**self._events),
        )

    def _reading_left(self, live: Tally, now: float) -> float | None:
        """Seconds until the prompts of the shards in work are read, or None before there is a speed."""
        if self._reading is None:
            self._reading = (now, live.prompt_tokens)
        began, before = self._reading
        speed = (live.prompt_tokens - before) / (now - began) if now > began else 0.0
        return live.prompt_tokens_left / speed if speed > 0 else None

    def _talking(self, issued: Container[int | None]) -> dict[str, LiveReport]:
        now = self._clock()
        return {worker: report for worker, (report, at) in self._live.items() if now - at < SILENT_SECONDS or report.shard in issued}
