"""What the reference page takes from the code when the site is built, so that it cannot say anything else."""

import inspect
import re

import click

from producer.cli import SECTIONS
from schemas import errors


def on_page_markdown(markdown, **_):
    """Fill in the places that are marked `<!-- commands -->` and `<!-- errors -->`."""
    return markdown.replace("<!-- commands -->", commands()).replace("<!-- errors -->", error_table())


def commands():
    """Every command with its arguments, options and defaults."""
    parts = []
    for title, group in SECTIONS.items():
        parts.append(f"### {title}\n")
        for command in group:
            parts += _command(command, f"specmill {command.name}")
    return "\n".join(parts)


def error_table():
    """Every error with its sentence."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.SpecmillError)]
    rows = [f"| `{kind.__name__}` | `{kind.__mro__[1].__name__}` | {' '.join((kind.__doc__ or '').split())} |" for kind in kinds]
    return "\n".join(["| error | is a | when |", "|---|---|---|", *rows])


def _command(command, name):
    context = click.Context(command, info_name=name)
    parts = [f"#### `{name}`\n", f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n", _paragraphs(command.help or ""), ""]
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [f"| `{record[0]}` | {_cell(record[1])} |" for record in records if record is not None]
    parts += ["| option | |", "|---|---|", *rows, ""] if rows else []
    for child in getattr(command, "commands", {}).values():
        parts += _command(child, f"{name} {child.name}")
    return parts


def _paragraphs(text):
    """Click's help as Markdown; what follows a \\b is kept as it is set."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"```\n{part[1:].strip()}\n```" if part.startswith("\b") else part for part in parts)


def _cell(text):
    return re.sub(r"([|<>\[\]{}*])", r"\\\1", text)
