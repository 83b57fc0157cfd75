"""`specmill status`, `pause`, `resume` and `cancel`: runs that go on elsewhere."""

import json
from collections.abc import Callable
from typing import Any

import click

from worker import BROKER_VARIABLE

_BROKER = click.option("--broker", metavar="URL", envvar=BROKER_VARIABLE, show_envvar=True, help="The shared broker.")
_RUN = click.argument("run")


@click.command(short_help="The runs and workers of a broker.")
@click.argument("out", required=False)
@_BROKER
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def status(out: str | None, broker: str | None, as_json: bool) -> None:
    """Show every run and worker of a shared broker, or of the one that belongs to the running session in folder OUT."""
    import redis

    from producer.fleet_status import FleetStatus
    from worker.redis_client import make_client, unusable

    if out is not None:
        from producer.run_reference import RunReference

        broker = RunReference.find(out, broker).broker_url
    if broker is None:
        raise click.UsageError("give --broker, or the folder of a session that runs")
    with make_client(broker, patient=False) as client:
        try:
            found = FleetStatus.look(client)
        except (redis.RedisError, OSError) as error:
            raise unusable(broker, error) from error
    click.echo(json.dumps(found.encode()) if as_json else found.text())


@click.command(short_help="Hold a run.")
@_RUN
@_BROKER
def pause(run: str, broker: str | None) -> None:
    """Hold RUN, a folder or the beginning of an id: workers give back what they have of it within 5 s, and nothing is lost."""
    _tell(run, broker, lambda ledger: ledger.pause("by specmill pause"), "paused")


@click.command(short_help="Let a paused run go on.")
@_RUN
@_BROKER
def resume(run: str, broker: str | None) -> None:
    """Let RUN, a folder or the beginning of an id, go on."""
    _tell(run, broker, lambda ledger: ledger.resume(), "resumed")


@click.command(short_help="End a run early; it can be taken up again.")
@_RUN
@_BROKER
@click.option("--forget", is_flag=True, help="Also remove from the broker what was not collected.")
def cancel(run: str, broker: str | None, forget: bool) -> None:
    """End RUN, a folder or the beginning of an id.

    Workers drop what they have of it within 5 s. What has landed stays, and `specmill run` with the same options goes on with the rest.
    """
    _tell(run, broker, _forget if forget else lambda ledger: ledger.cancel(), "cancelled")


def _forget(ledger: Any) -> None:
    from schemas.errors import InputError

    if (keeper := ledger.keeper()).startswith("coordinator "):
        raise InputError(f"the {keeper} runs this run, and would begin it again: cancel it without --forget, and it clears up itself")
    ledger.close()


def _tell(run: str, broker: str | None, act: Callable[[Any], object], done: str) -> None:
    import redis

    from producer.run_reference import RunReference
    from schemas.errors import InputError
    from worker.ledger import Ledger
    from worker.redis_client import make_client, masked, unusable

    found = RunReference.find(run, broker)
    with make_client(found.broker_url, patient=False) as client:
        ledger = Ledger(client, found.run_id)
        try:
            if not ledger.is_open():
                raise InputError(f"the run {found.run_id[:12]} is not on the broker {masked(found.broker_url)}")
            act(ledger)
        except (redis.RedisError, OSError) as error:
            raise unusable(found.broker_url, error) from error
    click.echo(f"run {found.run_id[:12]} {done}")
