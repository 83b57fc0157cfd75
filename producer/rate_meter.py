"""`RateMeter`: tokens per second of each worker while it is at work, from its live reports alone."""

from collections import deque
from collections.abc import Mapping

from worker.reports import LiveReport

WINDOW_SECONDS = 30.0
MIN_SECONDS = 1.0  # over less, a rate is an accident


class RateMeter:
    """Looks at reports again and again; a rate is that of the last half minute of work.

    Only what lies between two reports on the same shard counts: a shard's last tokens are never reported live.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[LiveReport, float]] = {}
        self._steps: dict[str, deque[tuple[float, int]]] = {}

    def see(self, live: Mapping[str, LiveReport], now: float) -> None:
        """Take in the workers' present reports; `now` is in seconds."""
        for gone in self._last.keys() - live.keys():
            del self._last[gone], self._steps[gone]
        for worker, report in live.items():
            before, at = self._last.get(worker, (report, now))
            steps = self._steps.setdefault(worker, deque())
            if report.beat == before.beat and worker in self._last:
                continue
            self._last[worker] = (report, now)
            tokens = report.tally.completion_tokens - before.tally.completion_tokens
            if report.shard is not None and report.shard == before.shard and tokens >= 0 and now > at:
                steps.append((now - at, tokens))
                while len(steps) > 1 and sum(seconds for seconds, _ in steps) - steps[0][0] >= WINDOW_SECONDS:
                    steps.popleft()

    def rate(self, worker: str) -> float:
        """Completion tokens per second of a worker; 0 before there is a second of work to measure it over."""
        steps = self._steps.get(worker, deque())
        seconds = sum(step for step, _ in steps)
        return sum(tokens for _, tokens in steps) / seconds if seconds >= MIN_SECONDS else 0.0
