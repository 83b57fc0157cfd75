"""`ColumnType`: the Arrow type of one of the user's own columns, found by looking at every value of the file.

bool, int64, float64, string, list and struct, nested as the JSON is. Integers and fractions together are float64. Whatever cannot share one
type (text here, a number there) makes the whole column JSON text, so that no value is lost and `json.loads` gives it back.
"""

from dataclasses import dataclass, field

import pyarrow as pa

from schemas.wire import canonical_json

MAX_FIELDS = 256  # keys of one nested object over the whole file; more are data, not columns
_INT64 = range(-(2**63), 2**63)
_FLOAT_EXACT = range(-(2**53), 2**53 + 1)
_KINDS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "string", list: "list", dict: "struct"}


@dataclass
class ColumnType:
    """What has been seen so far of a column, of a list's items or of an object's field.

    Attributes:
        kind: None (only nulls), bool, int, float, string, list, struct, or json once two kinds met.
        exact: whether every integer seen is one that float64 can hold.
        items: of a list: what its items are.
        fields: of a struct: what its fields are, in the order of their first appearance.
    """

    kind: str | None = None
    exact: bool = True
    items: "ColumnType | None" = None
    fields: "dict[str, ColumnType]" = field(default_factory=dict)

    def see(self, value: object) -> None:
        """Widen the type so that it holds `value`, a JSON value."""
        if value is None or self.kind == "json":
            return
        kind = _kind(value)
        self._widen(kind, exact=kind != "int" or value in _FLOAT_EXACT)
        if isinstance(value, list) and self.kind == "list":
            self.items = self.items or ColumnType()
            for item in value:
                self.items.see(item)
        elif isinstance(value, dict) and self.kind == "struct":
            for name, item in value.items():
                self.fields.setdefault(name, ColumnType()).see(item)
            self._bound()

    def join(self, later: "ColumnType") -> None:
        """Widen the type so that it holds what `later` holds, as if its values had been seen here."""
        if later.kind is None or self.kind == "json":
            return
        self._widen(later.kind, exact=later.exact)
        if later.items is not None and self.kind == "list":
            self.items = self.items or ColumnType()
            self.items.join(later.items)
        elif self.kind == "struct":
            for name, part in later.fields.items():
                self.fields.setdefault(name, ColumnType()).join(part)
            self._bound()

    def _widen(self, kind: str, *, exact: bool) -> None:
        if kind == self.kind and exact:
            return
        self.exact &= exact
        if {self.kind, kind} == {"int", "float"}:
            kind = "float"
        elif self.kind not in (None, kind):
            kind = "json"
        self.kind = "json" if kind == "float" and not self.exact else kind

    def _bound(self) -> None:
        if len(self.fields) > MAX_FIELDS:
            self.kind = "json"

    @property
    def is_json_text(self) -> bool:
        """Whether the column can only be kept as JSON text: some part of it has no single type."""
        if self.kind == "json" or (self.kind == "struct" and not self.fields):
            return True
        return any(part.is_json_text for part in (*self.fields.values(), *([self.items] if self.items else [])))

    def arrow(self) -> pa.DataType:
        """The Arrow type; string for JSON text and for columns that hold nothing but nulls."""
        if self.is_json_text or self.kind is None:
            return pa.string()
        if self.kind == "list":
            assert self.items is not None
            return pa.list_(self.items.arrow())
        if self.kind == "struct":
            return pa.struct([pa.field(name, part.arrow()) for name, part in self.fields.items()])
        return {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "string": pa.string()}[self.kind]

    def array(self, values: list[object]) -> pa.Array:
        """Values that have been seen, as an Arrow array of `arrow()`."""
        if self.is_json_text:
            values = [None if value is None else canonical_json(value) for value in values]  # type: ignore[arg-type]  # JSON values
        return pa.array(values, self.arrow())


def _kind(value: object) -> str:
    kind = _KINDS[type(value)]
    return kind if kind != "int" or value in _INT64 else "json"
