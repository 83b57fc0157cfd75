"""`RowSampling`: what one row asks for in place of the run's settings, and the column `sampling` that keeps it."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import pyarrow as pa

from schemas.run_spec import MAX_SAMPLES, MAX_SEED, MAX_TOKENS, RunSpec
from schemas.sampler import SamplerConfig

SAMPLER_FIELDS = tuple(field.name for field in fields(SamplerConfig))
COLUMN = "sampling"
_BIAS = pa.list_(pa.struct([pa.field("token", pa.int32()), pa.field("bias", pa.float64())]))
SAMPLING = pa.struct(
    [
        pa.field("temperature", pa.float64()),
        pa.field("top_p", pa.float64()),
        pa.field("top_k", pa.int64()),
        pa.field("min_p", pa.float64()),
        pa.field("presence_penalty", pa.float64()),
        pa.field("frequency_penalty", pa.float64()),
        pa.field("repetition_penalty", pa.float64()),
        pa.field("logit_bias", _BIAS),
        pa.field("min_tokens", pa.int64()),
        pa.field("max_tokens", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("seed", pa.uint64()),
        pa.field("stop", pa.list_(pa.string())),
    ]
)
"""Type of the column: a null field is as the run has it, a null row asks for nothing."""


@dataclass(frozen=True)
class RowSampling:
    """One row's own settings; None is as the run has it. Fields as in `SamplerConfig` and `RunSpec`.

    Raises:
        ValueError: a value outside its interval; the message states the interval and the value.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._sampler()
        for name, low, high in (("max_tokens", 1, MAX_TOKENS), ("n", 1, MAX_SAMPLES), ("seed", 0, MAX_SEED)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
                raise ValueError(f"{name} must be an integer in [{low}, {high}]; received {value!r}")
        if self.stop is not None and not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop must hold texts, none empty; received {list(self.stop)!r}")

    def of(self, spec: RunSpec) -> RunSpec:
        """The run as this row has it; `samples` stays."""
        own = {name: value for name in ("max_tokens", "seed", "stop") if (value := getattr(self, name)) is not None}
        return replace(spec, sampler=replace(spec.sampler, **self._sampler()), **own)

    def column(self) -> dict[str, Any]:
        """The value of the column `sampling`."""
        biases = None if self.logit_bias is None else [{"token": int(token), "bias": bias} for token, bias in self.logit_bias.items()]
        stop = None if self.stop is None else list(self.stop)
        return {**vars(self), "logit_bias": biases, "stop": stop}

    @classmethod
    def of_column(cls, value: dict[str, Any] | None) -> Self | None:
        """A row's settings out of the column; None where it asks for nothing."""
        if value is None:
            return None
        biases = None if value["logit_bias"] is None else {str(one["token"]): one["bias"] for one in value["logit_bias"]}
        return cls(**{**value, "logit_bias": biases, "stop": None if value["stop"] is None else tuple(value["stop"])})

    def _sampler(self) -> dict[str, Any]:
        """The sampler's own fields, checked."""
        given = {name: value for name in SAMPLER_FIELDS if (value := getattr(self, name)) is not None}
        SamplerConfig(**given)
        return given
