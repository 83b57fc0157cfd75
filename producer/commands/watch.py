"""`specmill watch RUN`."""

import click

from worker import BROKER_VARIABLE

LIVE_SECONDS = 1.0
PLAIN_SECONDS = 60.0


@click.command(short_help="A run while it goes on: workers, speed, acceptance.")
@click.argument("run")
@click.option("--broker", metavar="URL", envvar=BROKER_VARIABLE, show_envvar=True, help="The shared broker, for a run that is on one.")
@click.option("--interval", type=click.FloatRange(0.1), help="Seconds between two looks.  [default: 1 on a terminal, else 60]")
@click.option("--once", is_flag=True, help="One look.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per look, each on its line.")
def watch(run: str, broker: str | None, interval: float | None, once: bool, as_json: bool) -> None:
    """Watch RUN, a dataset's folder or the beginning of a run's id, until it is over or Ctrl-C; the run does not notice.

    On a terminal a table that is redrawn, elsewhere one line a minute. A folder in which nothing runs is described once.
    """
    import json
    import time

    from rich.live import Live

    from producer.plain_console import PlainConsole
    from producer.run_watch import RunWatch
    from producer.watch_display import watch_line, watch_view
    from schemas.errors import BrokerError

    console = PlainConsole()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json and not once else None
    seconds = interval or (LIVE_SECONDS if live is not None else PLAIN_SECONDS)
    watched = RunWatch(run, broker)
    try:
        if live is not None:
            live.start()
        while True:
            try:
                view = watched.look()
            except BrokerError as error:
                if once:
                    raise
                click.echo(f"{error}; looking again in {seconds:g} s", err=True)
                time.sleep(seconds)
                continue
            if as_json:
                click.echo(json.dumps(view.encode()))
            elif live is not None:
                live.update(watch_view(view), refresh=True)
            else:
                click.echo(watch_line(view))
            if view.over or once:
                return
            time.sleep(seconds)
    except KeyboardInterrupt:
        return
    finally:
        if live is not None:
            live.stop()
