"""`specmill diff A B`."""

import json
from typing import Any

import click

from producer.commands.place import PLACE
from schemas.errors import SpecmillError

CANNOT_RUN = 2


@click.command(short_help="Compare two datasets row by row.")
@click.argument("left", metavar="A", type=PLACE)
@click.argument("right", metavar="B", type=PLACE)
@click.option("--json", "as_json", is_flag=True, help="The comparison as JSON.")
def diff(left: Any, right: Any, as_json: bool) -> None:
    """Compare the datasets in A and B by record id and sample: equal, different (first differing token), only in one.

    Columns that one of them lacks are not compared. Exit codes: 0 the same rows; 1 not; 2 one of them cannot be read.
    """
    from producer.dataset_diff import DatasetDiff

    try:
        found = DatasetDiff.of(left, right)
    except (SpecmillError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(CANNOT_RUN) from error
    click.echo(json.dumps(found.to_json(), ensure_ascii=False) if as_json else found.text())
    raise click.exceptions.Exit(found.exit_code)
