"""From what a user says of the form of completions to a `Constraint` that compiles."""

import json
from functools import lru_cache
from pathlib import Path

from schemas.constraint import Constraint
from schemas.errors import InputError
from worker.engine.grammar import check_constraint


def constraint_from(json_schema: str | None, regex: str | None, grammar: str | None) -> Constraint | None:
    """The constraint that one of the options gives, or None.

    Args:
        json_schema: a file with a JSON schema, or the schema itself.
        regex: a regular expression.
        grammar: a file with a grammar in llguidance's form of Lark, or the grammar itself.

    Raises:
        InputError: more than one of them, or a file that cannot be read.
        GrammarError: it cannot be compiled.
    """
    given = [name for name, value in (("--json-schema", json_schema), ("--regex", regex), ("--grammar", grammar)) if value is not None]
    if len(given) > 1:
        raise InputError(f"{', '.join(given)}: one of them says what completions look like; received {len(given)}")
    if json_schema is not None:
        text = json_schema if json_schema.lstrip().startswith("{") else _read("--json-schema", json_schema)
        try:
            return json_schema_constraint(json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError(f"--json-schema {json_schema} is not JSON: {error}") from error
    if regex is not None:
        return _checked("--regex", "regex", regex)
    if grammar is not None:
        return _checked("--grammar", "grammar", grammar if "start:" in grammar else _read("--grammar", grammar))
    return None


def json_schema_constraint(schema: object) -> Constraint:
    """The constraint of a parsed JSON schema, whatever its white space was; its order of keys stays.

    Raises:
        InputError: not an object.
        GrammarError: it cannot be compiled.
    """
    if not isinstance(schema, dict):
        raise InputError(f"a JSON schema must be an object; received {json.dumps(schema)[:80]}")
    return _checked("the JSON schema", "json-schema", json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


@lru_cache(maxsize=64)  # every line of a batch file may hold the same schema
def _checked(what: str, kind: str, text: str) -> Constraint:
    try:
        constraint = Constraint(kind, text)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error
    check_constraint(constraint)
    return constraint


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {path} cannot be read: {error}") from error
