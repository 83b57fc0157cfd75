"""`specmill model fetch|path NAME` and `specmill model list`."""

from pathlib import Path

import click


@click.group(short_help="Fetch a model, say where it is, or list what is here.")
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
