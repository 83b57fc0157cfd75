"""`TunedProfile`: the slots and the depth that `specmill tune` found to be the fastest on a machine; `--depth auto` uses them there."""

from dataclasses import dataclass

from schemas.depth_trial import DepthTrial
from schemas.wire import Wire


@dataclass(frozen=True)
class TunedProfile(Wire):
    """What one grid of slots and depths was worth.

    Attributes:
        model: digest of the model.
        head: digest of the head.
        dtype: compute dtype.
        backend: name of the backend class, mlx version included.
        specmill: version of specmill.
        temperature: of the sampler while it measured; acceptance depends on it.
        top_p: likewise.
        slots: B of the fastest cell.
        depth: K of the fastest cell.
        trials: every cell that could be measured, by slots, then by depth.
    """

    model: str
    head: str
    dtype: str
    backend: str
    specmill: str
    temperature: float
    top_p: float
    slots: int
    depth: int
    trials: tuple[DepthTrial, ...]

    def at(self, slots: int) -> tuple[DepthTrial, ...]:
        """The trials with so many slots."""
        return tuple(trial for trial in self.trials if trial.slots == slots)
