"""`specmill submit PROMPTS --out DIR --broker URL`."""

from pathlib import Path
from typing import Any

import click

from producer.commands.run import check, options_from, run

HERE_ONLY = ("workers", "quiet", "dry_run", "stall_timeout", "metrics_port")


@click.pass_context
def _submit(context: click.Context, /, max_broker_mb: float, prompts: tuple[Path, ...], **given: Any) -> None:
    """Hand PROMPTS to a shared broker and leave: no terminal stays open.

    Workers generate the rows, and one of them feeds and reconciles in turn. Their results wait in the broker, for up to seven days, until
    `specmill run` with the same options collects them into --out. `specmill status` shows how far they are.
    """
    options = options_from(context, prompts, given, workers=0)
    if options.auto_depth:
        raise click.UsageError("--depth auto is measured where `specmill run` works; give submit a number")
    check(options)
    from producer.submission import submit as hand_over

    run_id = hand_over(options, lambda line: click.echo(line, err=True), max_broker_mb)
    if run_id is not None:
        click.echo(run_id)


submit = click.Command(
    "submit",
    callback=_submit,
    params=[parameter for parameter in run.params if parameter.name not in HERE_ONLY]
    + [
        click.Option(
            ["--max-broker-mb"],
            type=click.FloatRange(0.0),
            default=512.0,
            show_default=True,
            help="Most megabytes of inputs in the broker; with --shared, or --out in an object store, the rest lies there.",
        )
    ],
    help=_submit.__doc__,
    short_help="A run to a shared broker, without waiting for it.",
)
