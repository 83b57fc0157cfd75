"""`specmill monitor [RUN]`."""

from pathlib import Path

import click

from producer.commands.long_command import LongCommand
from worker import BROKER_VARIABLE


@click.command(cls=LongCommand, short_help="Flower, the web page of Celery, for a broker.")
@click.argument("run", required=False)
@click.option("--broker", metavar="URL", envvar=BROKER_VARIABLE, show_envvar=True, help="The shared broker.")
@click.option("--port", type=click.IntRange(1, 65535), default=5555, show_default=True, help="Port of the page.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen; anything but loopback shows the page to others.")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Keeps the history.  [default: in the user's cache]")
def monitor(run: str | None, broker: str | None, port: int, address: str, state: Path | None) -> None:
    """Serve Flower for --broker, or for the session that runs in the folder RUN.

    Its page shows every shard with its run, state, worker and result. It is read-only and asks for a password, which is made up and printed
    once unless SPECMILL_MONITOR_PASSWORD holds one. Flower answers /metrics and /healthcheck without the password.
    """
    from producer.monitor import run_monitor
    from producer.run_reference import RunReference

    if run is not None:
        broker = RunReference.find(run, broker).broker_url
    if broker is None:
        raise click.UsageError("give --broker, or the folder of a session that runs")
    run_monitor(broker, address, port, state, click.echo)
