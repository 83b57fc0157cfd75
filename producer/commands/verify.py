"""`specmill verify OUT`."""

import json
from typing import Any

import click

from producer.commands.place import PLACE
from producer.commands.trust import TRUST_REMOTE_CODE
from producer.run_options import VERIFY_MODES
from schemas.errors import SpecmillError

CANNOT_RUN = 2


@click.command(short_help="Check that a dataset is what its manifest says.")
@click.argument("out", type=PLACE)
@click.option("--rows", type=click.IntRange(min=1), default=100, show_default=True, help="Rows drawn at random.")
@click.option("--all", "every", is_flag=True, help="Every row.")
@click.option("--ids", metavar="ID", multiple=True, help="The rows of this record; repeatable.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random choice of rows.")
@click.option("--teacher-forced", "mode", flag_value=VERIFY_MODES[2], help="Judge the stored tokens by one forward pass, on any machine.")
@click.option("--regenerate", "mode", flag_value=VERIFY_MODES[1], help="Regenerate and compare bits even on another backend class.")
@click.option("--model", metavar="MODEL", help="Where the model is here.  [default: as the manifest names it]")
@click.option("--mtp", metavar="FILE", help="Where the MTP head is here.  [default: as the manifest names it]")
@click.option("--draft-model", metavar="MODEL", help="Where the draft model is here.  [default: as the manifest names it]")
@click.option("--no-files", "files", flag_value=False, default=True, help="Do not check the part files' contents.")
@TRUST_REMOTE_CODE
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress.")
def verify(
    out: Any,
    rows: int,
    every: bool,
    ids: tuple[str, ...],
    seed: int,
    mode: str | None,
    model: str | None,
    mtp: str | None,
    draft_model: str | None,
    files: bool,
    trust_remote_code: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Regenerate sampled rows of the dataset in OUT and compare them field by field.

    Part files are checked against the manifest first. Where model or head are the manifest's but the machine is of another class, rows are
    judged by one forward pass over their stored tokens instead. Exit codes: 0 all equal; 1 something differs; 2 it could not be tried;
    3 nothing differs, but the model or the head here is not the manifest's, so rows could not be compared as asked.
    """
    from producer.row_selection import RowSelection
    from producer.step_display import make_step_display
    from producer.verification import VerifyRequest
    from producer.verification import verify as verify_dataset

    selection = RowSelection(every, ids, rows, seed)
    request = VerifyRequest(selection, mode or VERIFY_MODES[0], model, mtp, draft_model, files, trust_remote_code)
    try:
        with make_step_display(quiet=quiet) as display:
            report = verify_dataset(out, request, display)
    except (SpecmillError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(CANNOT_RUN) from error
    click.echo(json.dumps(report.to_json(), ensure_ascii=False) if as_json else report.text())
    raise click.exceptions.Exit(report.exit_code)
