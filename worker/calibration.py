"""`Calibration`: accepted drafts against the number that their acceptance probabilities promise.

Every judged draft adds α to the expected number of accepted drafts and α(1-α) to its variance, so over a run z = (accepted - Σα) / √Σα(1-α)
is a standard normal number if, and only if, the engine draws its drafts from the q and accepts them by the p that it says. It is a
martingale, so the verdict uses Freedman's inequality: |accepted - Σα| beyond 5 √(V + |accepted - Σα| / 3) has a probability below 1e-5 at
any length, also where a few rare rejections make a large z. The bound holds at every look at the run, not only at its end.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from schemas.errors import CalibrationError
from schemas.progress import AttemptReport, Tally

LIMIT = 5.0


@dataclass(frozen=True)
class Calibration:
    """Accepted drafts and what was expected of them.

    Attributes:
        accepted: accepted drafts.
        expected: Σα over the judged drafts.
        variance: Σα(1-α) over them.
    """

    accepted: int
    expected: float
    variance: float

    @property
    def z(self) -> float | None:
        """Deviation in standard deviations; None where no draft's fate was open."""
        return (self.accepted - self.expected) / math.sqrt(self.variance) if self.variance > 0.0 else None

    @property
    def broken(self) -> bool:
        """Whether chance is ruled out; implies |z| > 5."""
        deviation = abs(self.accepted - self.expected)
        return deviation > LIMIT * math.sqrt(self.variance + deviation / 3.0) + 1e-6 * self.expected

    def text(self) -> str:
        """`z = +0.41 (1,234 accepted, 1,228.1 expected)`."""
        shown = "no draft whose fate was open" if self.z is None else f"z = {self.z:+.2f}"
        return f"{shown} ({self.accepted:,} accepted, {self.expected:,.1f} expected)" + (": BROKEN" if self.broken else "")


def by_part(tally: Tally) -> dict[str, Calibration]:
    """The calibration of a tally: `in total`, then `at depth 1`, `at depth 2`, … where drafts were judged."""
    total = Calibration(sum(tally.accepted_by_depth), tally.expected_accepted, tally.accepted_variance)
    depths = zip(tally.accepted_by_depth, tally.expected_by_depth, tally.variance_by_depth, strict=False)
    return {"in total": total} | {f"at depth {depth}": Calibration(*sums) for depth, sums in enumerate(depths, 1)}


class CalibrationWatch:
    """Judges a run while it goes on: in total, by depth, and by worker."""

    def __init__(self) -> None:
        self._total = Tally()
        self._by_worker: dict[str, Tally] = defaultdict(Tally)

    def check(self, report: AttemptReport) -> None:
        """Count one attempt.

        Raises:
            CalibrationError: the drafts accepted so far cannot be what the acceptance probabilities promise.
        """
        self._total += report.tally
        self._by_worker[report.worker] += report.tally
        # One worker is named before the run is: it may be the only broken one.
        for where, tally in ((f"on worker {report.worker} ({report.backend.chip})", self._by_worker[report.worker]), ("", self._total)):
            for part, calibration in by_part(tally).items():
                if calibration.broken:
                    raise CalibrationError(_explanation(f"{where} {part}".strip(), calibration))


def _explanation(where: str, calibration: Calibration) -> str:
    return (
        f"the engine is not calibrated {where}: {calibration.text()}. Its rows are no draws from the model: drafts are not drawn from the "
        "q, or not judged by the p, that it computes. What has landed is kept and not to be trusted. `specmill doctor` on that machine "
        "tests its parts; --ignore-calibration goes on regardless"
    )
