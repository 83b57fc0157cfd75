"""`specmill worker --broker URL`, and `specmill worker install`."""

import click

from producer.run_options import BROKER_VARIABLE
from worker.patience import DRAIN_SECONDS, LEASE_SECONDS, STALL_SECONDS


@click.command(short_help="Serve runs from a broker, on this machine.")
@click.option(
    "--broker",
    required=True,
    metavar="URL",
    envvar=BROKER_VARIABLE,
    show_envvar=True,
    help="redis:// or rediss:// of the broker that the run uses; the variable keeps its password off the command line.",
)
@click.option("--name", help="The worker's own name, for one worker.  [default: host:pid]")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes, each with an engine.")
@click.option("--models", metavar="NAME[,NAME]", multiple=True, help="Load only these models; shards of others wait for other workers.")
@click.option(
    "--stall-timeout",
    type=click.FloatRange(0.0),
    default=STALL_SECONDS,
    show_default=True,
    help="Seconds without a new token before the engine is killed and its shard given back; 0 waits for ever.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0.0),
    default=DRAIN_SECONDS,
    show_default=True,
    help="Seconds that SIGTERM or Ctrl-C leaves to the shard in work before it is given back.",
)
@click.option("--lease-seconds", type=float, default=LEASE_SECONDS, hidden=True)  # tests shorten it on both sides
def worker(
    broker: str,
    name: str | None,
    workers: int,
    models: tuple[str, ...],
    stall_timeout: float,
    drain_timeout: float,
    lease_seconds: float,
) -> None:
    """Generate shards for whatever runs the broker has.

    A worker that dies is started again, and what it held goes to others at once. SIGTERM or Ctrl-C finishes the shard in work; the second
    one gives it back at once. Exit code 3 means that the engine does not start on this machine.
    """
    if name is not None and workers > 1:
        raise click.UsageError("--name is for one worker; received --workers " + str(workers))
    from producer.local_workers import WorkerSettings
    from producer.worker_supervisor import WorkerSupervisor
    from worker.main import set_up_logging

    set_up_logging(broker)
    named = tuple(model for text in models for model in text.split(",") if model)
    settings = WorkerSettings(
        lease_seconds=lease_seconds, stall_seconds=stall_timeout, drain_seconds=drain_timeout, models=named, name=name
    )
    raise click.exceptions.Exit(WorkerSupervisor(workers, broker, settings).run())
