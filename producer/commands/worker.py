"""`specmill worker --broker URL`."""

import click


@click.command(short_help="Serve runs from a broker, on this machine.")
@click.option("--broker", required=True, metavar="URL", help="redis:// or rediss:// of the broker that the run uses.")
@click.option("--name", help="The worker's own name.  [default: host:pid]")
@click.option("--die-with-parent", is_flag=True, hidden=True, help="End when standard input ends.")
def worker(broker: str, name: str | None, die_with_parent: bool) -> None:
    """Generate shards for whatever runs the broker has, until SIGTERM or Ctrl-C."""
    from worker.main import run_worker

    run_worker(broker, name, die_with_parent=die_with_parent)
