"""`Constraint`: the form that every completion of a run must have."""

from dataclasses import dataclass

from schemas.wire import Wire

KINDS = ("json-schema", "regex", "grammar")


@dataclass(frozen=True)
class Constraint(Wire):
    """What a completion must match as a whole, unless its budget ends it first.

    Attributes:
        kind: `json-schema`, `regex` or `grammar`.
        text: a JSON schema as compact JSON in its own order of keys, which is the order of the properties that are written; a regular
            expression without look-around; or a grammar in llguidance's form of Lark.

    Raises:
        ValueError: another kind, or no text.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; received {self.kind!r}")
        if not self.text:
            raise ValueError(f"text of a {self.kind} must have at least one character; received ''")
