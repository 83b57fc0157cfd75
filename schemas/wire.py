"""How a frozen dataclass crosses a process border: JSON, versioned, strict.

`Wire` gives a dataclass `encode()` and `decode()`. Decoding refuses, by name, an unknown version, an unknown field, a missing field and a
value of the wrong type, always with `DecodeError`. Supported field types: bool, int, float, str, None, unions of these, nested `Wire`
classes, `tuple[T, ...]` and `dict[str, T]`.

A field that joins a class later is declared with `added(default)`, where the default means "as before": it is left out while it holds that
default, and a value without it has it. So what older versions wrote can be read, and no digest changes until the field is used.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, ClassVar, Self

from schemas.errors import DecodeError

ADDED = "added"  # key in the metadata of a dataclass field

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def added(default: Any = dataclasses.MISSING, *, factory: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that older versions do not write.

    Args:
        default: what its absence means; it must never change.
        factory: makes the default where it is mutable; one of the two is given.
    """
    return dataclasses.field(default=default, default_factory=factory, metadata={ADDED: True})


class Wire:
    """Mixin of the frozen dataclasses that cross a border; `VERSION` is the `v` of the wire form."""

    VERSION: ClassVar[int] = 1

    def encode(self) -> dict[str, Json]:
        """The JSON object of this value, `v` first."""
        assert dataclasses.is_dataclass(self)
        fields = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return {"v": self.VERSION, **{field.name: _encode(value) for field, value in fields if not _goes_without_saying(field, value)}}

    def to_json(self) -> str:
        """`encode()` as one line of canonical JSON (sorted keys, no spaces, no NaN)."""
        return canonical_json(self.encode())

    @classmethod
    def decode(cls, data: object) -> Self:
        """The value of a JSON object, checked field by field.

        Raises:
            DecodeError: another version, an unknown or missing field, a wrong type, or a value that the class itself refuses.
        """
        name = cls.__name__
        if not isinstance(data, dict):
            raise DecodeError(f"{name} must be a JSON object; received {_brief(data)}")
        if "v" not in data:
            raise DecodeError(f"{name} has no version field 'v'; this specmill reads v={cls.VERSION}")
        if data["v"] != cls.VERSION:
            raise DecodeError(f"{name} has version {_brief(data['v'])}; this specmill reads v={cls.VERSION}")
        assert dataclasses.is_dataclass(cls)
        hints = _hints(cls)
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(map(str, data)) - set(known) - {"v"})
        if unknown:
            raise DecodeError(f"{name} has unknown field {unknown[0]!r}; known fields: {', '.join(sorted(known))}")
        missing = sorted(name for name, field in known.items() if name not in data and ADDED not in field.metadata)
        if missing:
            raise DecodeError(f"{name} lacks field {missing[0]!r}")
        values = {key: _decode(hints[key], data[key], f"{name}.{key}") for key in known if key in data}
        try:
            return cls(**values)
        except DecodeError:
            raise
        except ValueError as error:
            raise DecodeError(f"{name}: {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """`decode()` of one JSON document."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{cls.__name__} is not valid JSON: {error}") from error
        return cls.decode(data)


def canonical_json(value: Json) -> str:
    """One line of JSON that is a function of the value alone; the text that digests are taken over."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_hints = functools.cache(typing.get_type_hints)  # reading them takes longer than decoding


def _goes_without_saying(field: "dataclasses.Field[Any]", value: object) -> bool:
    """Whether a field that was added holds what its absence means."""
    if ADDED not in field.metadata:
        return False
    return bool(value == (field.default if field.default_factory is dataclasses.MISSING else field.default_factory()))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _encode(value: Any) -> Json:
    if isinstance(value, Wire):
        return value.encode()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    assert value is None or isinstance(value, bool | int | float | str), type(value)
    return value


def _decode(hint: Any, value: object, path: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(hint, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise DecodeError(f"{path} must be a list; received {_brief(value)}")
        item_hint = typing.get_args(hint)[0]
        return tuple(_decode(item_hint, item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise DecodeError(f"{path} must be an object; received {_brief(value)}")
        item_hint = typing.get_args(hint)[1]
        return {key: _decode(item_hint, item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Wire):
        return hint.decode(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise DecodeError(f"{path} must be finite; received {value}")
    if hint is type(None):
        hint = types.NoneType
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise DecodeError(f"{path} must be {hint.__name__}; received {_brief(value)}")
    return value


def _decode_union(hint: Any, value: object, path: str) -> Any:
    problems = []
    for option in typing.get_args(hint):
        try:
            return _decode(option, value, path)
        except DecodeError as error:
            problems.append(error)
    structured = [error for error in problems if isinstance(value, dict) and "must be" not in str(error)]
    names = " or ".join(getattr(option, "__name__", str(option)) for option in typing.get_args(hint))
    raise structured[0] if structured else DecodeError(f"{path} must be {names}; received {_brief(value)}")
