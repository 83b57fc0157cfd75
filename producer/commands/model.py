"""`specmill model fetch|path NAME`."""

import click


@click.group(short_help="Fetch a model, or say where it is.")
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
