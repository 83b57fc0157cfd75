"""`RunTerms`: how a run is kept, by its coordinator or by a keeper in its place. None of it changes a row."""

from dataclasses import dataclass

from schemas.wire import Wire

PRIORITIES = ("high", "normal", "low")  # of runs
DEFAULT_MAX_ERROR_RATE = 0.5


@dataclass(frozen=True)
class RunTerms(Wire):
    """What the last session said about it.

    Attributes:
        priority: one of `PRIORITIES`, against the other runs of the broker.
        max_error_rate: largest share of failed rows, 0 to 1, before the run is held.
        watch_calibration: whether an engine that contradicts itself holds the run.
    """

    priority: str = PRIORITIES[1]
    max_error_rate: float = DEFAULT_MAX_ERROR_RATE
    watch_calibration: bool = True

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise ValueError(f"priority must be one of {', '.join(PRIORITIES)}; received {self.priority!r}")
        if not 0.0 <= self.max_error_rate <= 1.0:
            raise ValueError(f"max_error_rate must be in [0, 1]; received {self.max_error_rate}")
