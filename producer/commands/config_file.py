"""`--config run.toml`: options by name, as defaults of a command."""

import tomllib
from pathlib import Path
from typing import Any

import click


def read_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Make what a TOML file says the defaults of the command's options; an eager callback, so that they are there when options are read.

    Raises:
        click.BadParameter: not TOML, a key that is no option, or a table.
    """
    if path is None:
        return
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error
    names = {name: parameter.name for parameter in context.command.params for name in _names(parameter)}
    defaults: dict[str, Any] = {}
    for key, value in found.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            raise click.BadParameter(f"{path}: {key!r} is no option; options: {', '.join(sorted(names))}")
        if isinstance(value, dict):
            raise click.BadParameter(f"{path}: {key!r} must be a value; received a table")
        defaults[name] = [value] if name == "prompts" and isinstance(value, str) else value
    context.default_map = defaults


def _names(parameter: click.Parameter) -> list[str]:
    if not parameter.expose_value:
        return []
    # An argument has no dash, and an option's letter is no name.
    return [option.removeprefix("--") for option in parameter.opts if option.startswith("--") or not option.startswith("-")]
