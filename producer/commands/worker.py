"""`specmill worker --broker URL`."""

import click

from producer.run_options import BROKER_VARIABLE


@click.command(short_help="Serve runs from a broker, on this machine.")
@click.option(
    "--broker",
    required=True,
    metavar="URL",
    envvar=BROKER_VARIABLE,
    show_envvar=True,
    help="redis:// or rediss:// of the broker that the run uses; the variable keeps its password off the command line.",
)
@click.option("--name", help="The worker's own name.  [default: host:pid]")
@click.option("--die-with-parent", is_flag=True, hidden=True, help="End when standard input ends.")
def worker(broker: str, name: str | None, die_with_parent: bool) -> None:
    """Generate shards for whatever runs the broker has, until SIGTERM or Ctrl-C."""
    from worker.main import run_worker

    raise click.exceptions.Exit(run_worker(broker, name, die_with_parent=die_with_parent))
