"""The JSON schema of a `Wire` class, from its fields: `docs/manifest.schema.json` is what `python -m schemas.json_schema` prints."""

import dataclasses
import json
import types
import typing
from typing import Any

from schemas.wire import ADDED, Json, Wire

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def json_schema(cls: type[Wire]) -> dict[str, Json]:
    """The schema of a class's wire form; nested classes become `$defs`, docstrings become descriptions."""
    definitions: dict[str, Json] = {}
    root = _object(cls, definitions)
    return {"$schema": DIALECT, "title": cls.__name__, **root, "$defs": {name: definitions[name] for name in sorted(definitions)}}


def _object(cls: type[Wire], definitions: dict[str, Json]) -> dict[str, Json]:
    assert dataclasses.is_dataclass(cls)
    texts = _attribute_texts(cls.__doc__ or "")
    hints = typing.get_type_hints(cls)
    properties: dict[str, Json] = {"v": {"const": cls.VERSION, "description": "version of this object's form"}}
    required: list[Json] = ["v"]
    for field in dataclasses.fields(cls):
        properties[field.name] = {**_schema(hints[field.name], definitions), "description": texts[field.name]}
        if ADDED not in field.metadata:
            required.append(field.name)
    return {
        "type": "object",
        "description": (cls.__doc__ or "").strip().partition("\n")[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema(hint: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(option, definitions) for option in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if isinstance(hint, type) and issubclass(hint, Wire):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _PLAIN[hint]}


def _attribute_texts(docstring: str) -> dict[str, str]:
    """The entries of a Google-style `Attributes:` section, each as one line."""
    _, _, section = docstring.partition("Attributes:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if not line.strip():
            break
        indent = len(line) - len(line.lstrip())
        if indent == 8:
            name, _, text = line.strip().partition(": ")
            texts[name] = text
        elif name:
            texts[name] += " " + line.strip()
    return texts


if __name__ == "__main__":
    from schemas.manifest import Manifest

    print(json.dumps(json_schema(Manifest), indent=1, ensure_ascii=False))
