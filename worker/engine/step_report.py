"""`StepReport`: one line of text now and then about a step that takes a while, with an estimate of what is left."""

import time
from collections.abc import Callable

SECONDS_BETWEEN = 5.0
LEAST_SHARE = 0.005  # done, before anything can be estimated from it


class StepReport:
    """Call `at` as often as you like."""

    def __init__(
        self, report: Callable[[str], None], what: str, total: float, unit: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args.

        Args:
            report: receives the lines; none comes for a step that is over in `SECONDS_BETWEEN`.
            what: the step, as a sentence begins: `downloading`.
            total: what there is to do, > 0.
            unit: of `total`: `MB`.
            clock: counts seconds.
        """
        self._report = report
        self._what = what
        self._total = total
        self._unit = unit
        self._clock = clock
        self._began = self._last = clock()

    def at(self, done: float) -> None:
        """So much is done, in units of `total`."""
        now, share = self._clock(), min(done / self._total, 1.0)
        if now - self._last < SECONDS_BETWEEN or share < LEAST_SHARE:
            return
        self._last = now
        left = time_left((now - self._began) * (1 / share - 1))
        self._report(f"{self._what}: {done:,.0f} of {self._total:,.0f} {self._unit} ({share:.0%}), about {left} left")


def time_left(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`: as exact as an estimate is."""
    if seconds < 100:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
