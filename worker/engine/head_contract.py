"""`HeadContract`: the choices in which MTP heads of different families differ."""

from dataclasses import dataclass

from schemas.wire import Wire

CONCAT_ORDERS = ("embedding_hidden", "hidden_embedding")
HIDDEN_CHOICES = ("post_norm", "pre_norm")


@dataclass(frozen=True)
class HeadContract(Wire):
    """What acceptance depends on and exactness does not.

    Attributes:
        concat: order of the two halves of fc's input, `embedding_hidden` or `hidden_embedding`.
        base_hidden: the trunk's hidden state that is fed: `post_norm` or `pre_norm` of the trunk's final norm.
        recycled_hidden: the head's own hidden state that deeper drafts are fed: `post_norm` or `pre_norm` of the head's final norm.

    Raises:
        ValueError: another word.
    """

    concat: str = "embedding_hidden"
    base_hidden: str = "post_norm"
    recycled_hidden: str = "post_norm"

    def __post_init__(self) -> None:
        for name, choices in (("concat", CONCAT_ORDERS), ("base_hidden", HIDDEN_CHOICES), ("recycled_hidden", HIDDEN_CHOICES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; received {getattr(self, name)!r}")
