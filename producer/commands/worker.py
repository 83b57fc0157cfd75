"""`specmill worker --broker URL`, and `specmill worker install`."""

from pathlib import Path
from typing import Any

import click

from producer.commands.long_command import LongGroup
from producer.commands.place import PLACE
from producer.commands.trust import TRUST_REMOTE_CODE
from worker import BROKER_VARIABLE
from worker.patience import DRAIN_SECONDS, LEASE_SECONDS, STALL_SECONDS
from worker.quiet_hours import QuietHours


def _hours(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        QuietHours.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.group(cls=LongGroup, invoke_without_command=True, short_help="Serve runs from a broker, on this machine.")
@click.option(
    "--broker",
    metavar="URL",
    envvar=BROKER_VARIABLE,
    show_envvar=True,
    help="redis:// or rediss:// of the broker that the run uses; the variable keeps its password off the command line.",
)
@click.option("--name", help="The worker's own name, for one worker.  [default: host:pid]")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes, each with an engine.")
@click.option("--models", metavar="NAME[,NAME]", multiple=True, help="Load only these models; shards of others wait for other workers.")
@click.option(
    "--shared",
    metavar="DIR",
    multiple=True,
    type=PLACE,
    help="A folder that the coordinator sees under the same name, or s3://BUCKET/FOLDER: parts of runs below it are written there, by this "
    "machine; repeatable.",
)
@click.option("--quiet-hours", metavar="H-H", default="", callback=_hours, help="Local times without work, such as 9-17 or 22:30-6,12-13.")
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
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Serve metrics for Prometheus at 127.0.0.1:PORT/metrics; of several workers each has a port of its own, from this one on.",
)
@TRUST_REMOTE_CODE
@click.option("--lease-seconds", type=float, default=LEASE_SECONDS, hidden=True)  # tests shorten it on both sides
@click.pass_context
def worker(
    context: click.Context,
    /,
    broker: str | None,
    name: str | None,
    workers: int,
    models: tuple[str, ...],
    shared: tuple[Any, ...],
    quiet_hours: str,
    stall_timeout: float,
    drain_timeout: float,
    metrics_port: int | None,
    trust_remote_code: bool,
    lease_seconds: float,
) -> None:
    """Generate shards for whatever runs the broker has.

    A worker that dies is started again, and what it held goes to others at once. SIGTERM or Ctrl-C finishes the shard in work; the second
    one gives it back at once. Exit code 3 means that the engine does not start on this machine.
    """
    if broker is None:
        raise click.UsageError(f"give --broker, or its address in the environment variable {BROKER_VARIABLE}")
    if name is not None and workers > 1:
        raise click.UsageError("--name is for one worker; received --workers " + str(workers))
    if context.invoked_subcommand is not None:
        context.obj = broker, _words(context), drain_timeout
        return
    from producer.local_workers import WorkerSettings
    from producer.port_check import check_port
    from producer.worker_supervisor import WorkerSupervisor
    from worker.main import set_up_logging
    from worker.metrics import ADDRESS as METRICS_ADDRESS

    set_up_logging(broker)
    named = tuple(model for text in models for model in text.split(",") if model)
    settings = WorkerSettings(
        lease_seconds, stall_timeout, drain_timeout, named, name, shared, quiet_hours, metrics_port, trust_remote_code
    )
    for port in range(metrics_port, metrics_port + workers) if metrics_port is not None else ():
        check_port(METRICS_ADDRESS, port, "--metrics-port")
    raise click.exceptions.Exit(WorkerSupervisor(workers, broker, settings).run())


def _words(context: click.Context) -> list[str]:
    """The options that were given, but for the broker, as they were given."""
    words = []
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
        if given and getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
        elif given and parameter.name != "broker":
            value = context.params[str(parameter.name)]
            words += [f"{parameter.opts[0]}={one}" for one in (value if isinstance(value, tuple) else (value,))]
    return words


@worker.command()
@click.option("--dry-run", is_flag=True, help="Show what would be written.")
@click.pass_obj
def install(given: tuple[str, list[str], float], dry_run: bool) -> None:
    """Write a service that the system starts at login: launchd on macOS, systemd elsewhere.

    Options of the worker stand before `install`: specmill worker --models smollm2-135m install. The broker's address goes into a file that
    only you can read.
    """
    from producer.worker_service import worker_service

    service = worker_service(*given, home=Path.home())
    if dry_run:
        click.echo(service.text())
        return
    service.write()
    click.echo(f"wrote {service.unit} and {service.secret}\nstart it: {service.start}\nstop it:  {service.stop}")
