"""`DepthTrial`: what one depth was worth, measured by `specmill tune` or by a run with `--depth auto` before its first shard."""

from dataclasses import dataclass

from schemas.wire import Wire


@dataclass(frozen=True)
class DepthTrial(Wire):
    """One depth on some prompts; the run's own where it measured itself.

    Attributes:
        depth: K.
        slots: B.
        tokens: completion tokens per round.
        tokens_per_second: of the best round, prefill included, loading not.
        tokens_per_cycle: committed tokens per draft-verify-commit cycle.
    """

    depth: int
    slots: int
    tokens: int
    tokens_per_second: float
    tokens_per_cycle: float
