"""`SamplerConfig`: what turns raw logits into the target and the draft distribution, and its wire form."""

import math
from dataclasses import dataclass

from schemas.wire import Wire


@dataclass(frozen=True)
class SamplerConfig(Wire):
    """One configuration for target and draft alike (docs: exactness).

    Attributes:
        temperature: finite; ≤ 0 means greedy (one-hot at the argmax, lowest id on ties).
        top_p: nucleus mass in (0, 1], measured on the full tempered softmax; 1 = off.
        top_k: most candidates kept, ≥ 0; 0 = off.
        presence_penalty: OpenAI's, in [-2, 2]; subtracted once from the logit of every token the completion already holds.
        frequency_penalty: OpenAI's, in [-2, 2]; subtracted once per earlier occurrence.

    Raises:
        ValueError: a value outside its interval; the message states the interval and the value.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} must be a number; received {value!r}")
            object.__setattr__(self, name, float(value))
        if not math.isfinite(self.temperature):
            raise ValueError(f"temperature must be finite (<= 0 means greedy); received {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1]; received {self.top_p}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k must be an integer >= 0 (0 = off); received {self.top_k!r}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name} must be in [-2, 2]; received {getattr(self, name)}")

    @property
    def greedy(self) -> bool:
        """Whether the distribution is a one-hot at the argmax."""
        return self.temperature <= 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether token counts change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
