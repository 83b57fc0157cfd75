"""`WorkerCounts`: what one worker process has done since it began, for its metrics."""

from collections import Counter
from dataclasses import replace

from schemas.progress import Tally

OUTCOMES = ("landed", "skipped", "dropped", "passed on", "cancelled", "lost", "crashed", "failed")
"""What may become of a message; the words of `ShardTask`."""


class WorkerCounts:
    """Written by the task's thread, read by others.

    Attributes:
        retries: attempts at shards that somebody had tried before.
        outcomes: word of `OUTCOMES` → messages.
    """

    def __init__(self) -> None:
        self.retries = 0
        self.outcomes: Counter[str] = Counter()
        self._done = Tally()
        self._now = Tally()

    @property
    def tally(self) -> Tally:
        """All that was generated, also in attempts that came to nothing: a shard that was done twice counts twice."""
        return self._done + self._now

    def begin(self, attempt: int) -> None:
        """An attempt at a shard begins, the first or a later one."""
        self.retries += attempt > 1

    def progress(self, tally: Tally) -> None:
        """The counts so far of the attempt in work."""
        self._now = tally

    def end(self, outcome: str) -> None:
        """A message is done with; what is no word of `OUTCOMES` describes a shard that has landed."""
        self.outcomes[outcome if outcome in OUTCOMES else "landed"] += 1
        self._done, self._now = self._done + replace(self._now, prompt_tokens_left=0), Tally()
