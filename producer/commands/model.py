"""`specmill model fetch|path NAME`, `specmill model list` and `specmill model acceptance HEAD DATASET...`."""

from pathlib import Path

import click

from producer.commands.long_command import LongGroup
from producer.commands.trust import TRUST_REMOTE_CODE
from producer.run_options import DEFAULT_MODEL
from schemas.profile import MAX_DEPTH


@click.group(cls=LongGroup, short_help="Fetch a model, say where it is, or list what is here.")
def model() -> None:
    """Models that `--model` can name: smollm2-135m, a folder, or a Hugging Face id."""


@model.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Bring model NAME to this machine, unless it is here already, and print its folder."""
    from worker.engine.model_store import resolve_model

    click.echo(str(resolve_model(name, report=lambda line: click.echo(line, err=True))))


@model.command()
@click.argument("name")
def path(name: str) -> None:
    """Print the folder of model NAME; never touches the network."""
    from worker.engine.model_store import resolve_model

    click.echo(str(resolve_model(name, offline=True)))


@model.command("list")
@click.argument("folders", type=click.Path(path_type=Path, file_okay=False, exists=True), nargs=-1)
def list_models(folders: tuple[Path, ...]) -> None:
    """List cached models, and the heads in FOLDERS (here, unless given) with the acceptance that was measured when they were trained."""
    from producer.model_list import model_list

    click.echo(model_list(folders or (Path(),)))


@model.command()
@click.argument("head", type=click.Path(path_type=Path, exists=True))
@click.argument("sources", metavar="DATASET...", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option("--model", "model_name", default=DEFAULT_MODEL, show_default=True, help="The model that HEAD drafts for.")
@click.option("--depth", type=click.IntRange(1, MAX_DEPTH), default=3, show_default=True, help="Depths to judge.")
@click.option("--by", metavar="COLUMN", help="Also judge the rows of every value of this column, such as category.")
@click.option("--context", type=click.IntRange(8), default=1024, show_default=True, help="Longer rows are cut to so many tokens.")
@TRUST_REMOTE_CODE
@click.option("--quiet", is_flag=True, help="No progress.")
def acceptance(
    head: Path,
    sources: tuple[Path, ...],
    model_name: str,
    depth: int,
    by: str | None,
    context: int,
    trust_remote_code: bool,
    quiet: bool,
) -> None:
    """Say how often drafts of HEAD would be accepted on the rows of DATASETs, at temperatures 0, 0.6 and 1, without decoding anything.

    HEAD should not have been trained on these rows. Ctrl-C is safe: what was computed is cached.
    """
    from worker.engine import blas

    blas.prepare()  # before mlx is imported
    from producer.head_acceptance import head_acceptance
    from producer.step_display import make_step_display
    from producer.stop_signal import EXIT_CODE, StopSignal

    with (
        make_step_display(quiet=quiet) as display,
        StopSignal(lambda: display.note("stopping; the same command goes on from here"), display.close) as stop,
    ):
        text = head_acceptance(head, sources, model_name, depth, by, context, display, stop, trust_remote_code=trust_remote_code)
    if text is None:
        raise click.exceptions.Exit(EXIT_CODE)
    click.echo(text)
