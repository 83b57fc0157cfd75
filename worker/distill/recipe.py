"""`Recipe`: everything besides model and data that a trained head is a function of."""

from dataclasses import dataclass

from schemas.profile import MAX_DEPTH
from schemas.wire import Wire, added


@dataclass(frozen=True)
class Recipe(Wire):
    """How a head is trained.

    Attributes:
        steps: optimizer steps, ≥ 1.
        depth: depths that are unrolled, 1 to 7.
        draft_vocab: ids that the head may draft; 0 is the whole vocabulary.
        seed: of the held-out split and the order of the batches.
        learning_rate: highest one, reached after the warm-up.
        warmup: share of the steps over which it rises; it falls along a cosine to a twentieth afterwards.
        weight_decay: AdamW's, on matrices and norms alike.
        clip: largest norm of the gradient.
        depth_decay: weight of a depth relative to the one before.
        overlap_weight: share of the loss that is the overlap's, -log Σ min(p, q); the rest is the divergence's.
        hidden_weight: weight of the regression onto the trunk's own hidden states; 0 is off.
        batch_tokens: positions of one step, padding included.
        held_out: share of the records that is never trained on.
        context: most tokens of a sequence.
        evaluations: how often the held-out rows are looked at while training.
        patience: evaluations without a better one after which training ends early.

    Raises:
        ValueError: a value outside its interval.
    """

    steps: int
    depth: int = 3
    draft_vocab: int = 8192
    seed: int = 0
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    depth_decay: float = 0.7
    overlap_weight: float = added(0.0)
    hidden_weight: float = 0.0
    batch_tokens: int = 2048
    held_out: float = 0.1
    context: int = 1024
    evaluations: int = 10
    patience: int = 4

    def __post_init__(self) -> None:
        limits = {
            "steps": (1, 10**7),
            "depth": (1, MAX_DEPTH),
            "draft_vocab": (0, 2**31 - 1),
            "seed": (0, 2**64 - 1),
            "learning_rate": (0.0, 1.0),
            "warmup": (0.0, 1.0),
            "weight_decay": (0.0, 1.0),
            "clip": (0.0, 1e6),
            "depth_decay": (0.0, 1.0),
            "overlap_weight": (0.0, 1.0),
            "hidden_weight": (0.0, 1e3),
            "batch_tokens": (16, 10**6),
            "held_out": (0.0, 0.9),
            "context": (8, 2**20),
            "evaluations": (1, 10**4),
            "patience": (1, 10**4),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}]; received {getattr(self, name)}")
