"""`specmill report OUT`."""

from pathlib import Path
from typing import Any

import click

from producer.commands.place import PLACE

PAGE = "report.html"


@click.command(short_help="What a dataset holds, in numbers and as a page with plots.")
@click.argument("out", type=PLACE)
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help=f"Where the page goes.  [default: OUT/{PAGE}]")
@click.option("--no-html", is_flag=True, help="Numbers only.")
@click.option("--json", "as_json", is_flag=True, help="The numbers as one JSON object; writes no page unless --html is given.")
def report(out: Any, page: Any, no_html: bool, as_json: bool) -> None:
    """Print what the dataset OUT holds, finished or not, and write one self-contained HTML page with plots.

    Acceptance by depth, accepted lengths, calibration, speed of every worker over time, lengths, finish reasons, errors by kind, the
    slowest rows, and those with the lowest and highest acceptance: very low often means garbled text, very high often a loop.
    """
    if no_html and page is not None:
        raise click.UsageError("--no-html and --html exclude each other")
    import json

    from producer.report import Report
    from schemas.errors import UnwritableError
    from worker.landing import written_whole

    found = Report.of_dataset(out)
    click.echo(json.dumps(found.json(), ensure_ascii=False) if as_json else found.text())
    if no_html or (as_json and page is None):
        return
    target = page or out / PAGE
    try:
        with written_whole(target) as file:
            file.write(found.html().encode("utf-8", "backslashreplace"))
    except UnwritableError as error:
        raise UnwritableError(f"{error}; --html FILE writes the page elsewhere, --no-html writes none") from error
    click.echo(f"  page        {target}", err=as_json)
