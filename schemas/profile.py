"""`ExecutionProfile` and `Backend`: everything besides the contract inputs that can change a bit of a row."""

import re
from dataclasses import dataclass

from schemas.wire import Wire

ANY = "any"
SAME = "same"
_CLASS = re.compile(r"(cpu|gpu)(/[a-z0-9._-]+){2,3}")

MAX_SLOTS = 256
MAX_DEPTH = 7
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ExecutionProfile(Wire):
    """The shapes and the precision of a run, frozen at submission and obeyed by every worker.

    Attributes:
        slots: B, rows decoded side by side, 1 to 256.
        depth: K, draft tokens per cycle, 0 to 7; 0 is plain autoregressive decoding.
        capacities: the key/value capacities in tokens, ascending; a row uses the smallest that holds its prompt and its completion.
        prefill_chunk: tokens per prefill pass, ≥ 16.
        dtype: compute dtype of trunk and head: float32, bfloat16 or float16.

    Raises:
        ValueError: a value outside its interval.
    """

    slots: int = 16
    depth: int = 2
    capacities: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    prefill_chunk: int = 512
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"slots must be in [1, {MAX_SLOTS}]; received {self.slots}")
        if not 0 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"depth must be in [0, {MAX_DEPTH}]; received {self.depth}")
        if not self.capacities or list(self.capacities) != sorted(set(self.capacities)) or self.capacities[0] < 16:
            raise ValueError(f"capacities must be ascending integers >= 16; received {list(self.capacities)}")
        if self.prefill_chunk < 16:
            raise ValueError(f"prefill_chunk must be >= 16; received {self.prefill_chunk}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; received {self.dtype!r}")


@dataclass(frozen=True)
class Backend(Wire):
    """Where a shard was computed; recorded per shard, never part of a row.

    Attributes:
        device: `cpu` or `gpu`, mlx's default device.
        chip: the processor's or the GPU's own name.
        mlx: version of mlx; `-` for the scripted engine.
        blas: on Linux CPU the library and kernel behind fp32 matrix products, else empty.
        row_invariant: whether the probe found a row's bits independent of its slot and of the batch size.
    """

    device: str
    chip: str
    mlx: str
    blas: str
    row_invariant: bool

    @property
    def class_name(self) -> str | None:
        """`gpu/apple-m3-max/mlx-0.32.4`: rows of one class agree to the bit; None where no engine computed anything, or nobody knows.

        The chip goes by its whole name: mlx chooses tile sizes by generation and by size of the GPU, so an M3 and an M3 Max may differ.
        """
        if self.device not in ("cpu", "gpu"):
            return None
        parts = (self.device, self.chip, "no-mlx" if self.mlx == "-" else f"mlx-{self.mlx}", self.blas)
        return "/".join(re.sub(r"[^a-z0-9._]+", "-", part.lower()).strip("-") for part in parts if part)


def checked_demand(text: str) -> str:
    """What `--backend` takes: `any`, `same`, or the name of a class.

    Raises:
        ValueError: something else.
    """
    if text not in (ANY, SAME) and not _CLASS.fullmatch(text):
        raise ValueError(f"backend must be any, same, or a class as `specmill doctor` names it (gpu/CHIP/mlx-VERSION); received {text!r}")
    return text
