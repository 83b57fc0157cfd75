"""What the engine child asks of an engine; the MLX engine and the scripted one both answer to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from schemas.profile import Backend
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from worker.engine.completion import Completion, Request

OnCycle = Callable[[Callable[[], Tally]], None]
"""Called with a function that counts what was done so far, so that a cycle costs no sum nobody reads."""


class ShardDroppedError(Exception):
    """The parent no longer wants the shard that is being generated."""


@dataclass
class Timings:
    """Seconds of wall time by phase, summed over a shard; the peak memory in bytes; prompt tokens read, shared beginnings once."""

    load: float = 0.0
    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    peak_bytes: int = 0
    prefill_tokens: int = 0


class Engine(Protocol):
    """A loaded target (and head) that completes requests."""

    backend: Backend

    def complete(self, spec: RunSpec, requests: Sequence[Request], timings: Timings, on_cycle: OnCycle) -> list[Completion]:
        """One completion per request, in the same order; timings are added to.

        `on_cycle` is called after every cycle; whatever it raises ends the shard.
        """

    def score(self, spec: RunSpec, rows: pa.Table, on_row: Callable[[], None]) -> pa.Table:
        """What the target says of rows that exist: `schemas.scores.SCORES`, in their order.

        `on_row` is called before every row; whatever it raises ends the job.

        Raises:
            ModelError: an engine without a model.
        """
