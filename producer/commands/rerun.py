"""`specmill rerun OUT --out NEW`."""

from typing import Any

import click

from producer.commands.long_command import LongCommand
from producer.commands.place import PLACE
from producer.commands.trust import TRUST_REMOTE_CODE
from worker import BROKER_VARIABLE


@click.command(cls=LongCommand, short_help="Make a dataset again from its manifest alone.")
@click.argument("source", metavar="OUT", type=PLACE)
@click.option("--out", required=True, type=PLACE, help="The second dataset's folder.")
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True, help="Worker processes on this machine.")
@click.option("--broker", metavar="URL", envvar=BROKER_VARIABLE, show_envvar=True, help="A shared broker instead of an embedded one.")
@TRUST_REMOTE_CODE
@click.option("--quiet", is_flag=True, help="No progress.")
def rerun(source: Any, out: Any, workers: int, broker: str | None, trust_remote_code: bool, quiet: bool) -> None:
    """Generate the dataset in OUT a second time, into --out, and compare the two.

    The settings come from the manifest and the prompts from the rows: the prompts file need not be there. On one backend class the part
    files come out byte for byte the same. Exit codes: 0 the same rows; 1 not, or it failed; 130 after Ctrl-C.
    """
    from producer.dataset_diff import DatasetDiff
    from producer.progress_display import make_display
    from producer.rerun import rerun as make_again

    if workers == 0 and broker is None:
        raise click.UsageError("--workers 0 needs --broker: nobody else can reach the embedded broker")
    with make_display(quiet=quiet) as display:
        complete = make_again(source, out, workers=workers, broker=broker, trust_remote_code=trust_remote_code, display=display)
    if not complete:
        raise click.exceptions.Exit(130)
    found = DatasetDiff.of(source, out)
    click.echo(found.text())
    raise click.exceptions.Exit(found.exit_code)
