"""Priorities between runs, and what holds a run that nobody watches."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import redis
from chaos_fleet import poll

from producer.broker import EmbeddedBroker
from producer.local_workers import LocalWorkers, WorkerSettings
from worker.app import make_app, message_priority, queue_keys
from worker.feeder import Feeder
from worker.ledger import Ledger
from worker.run_terms import PRIORITIES, RunTerms


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of the test's own, so that it has no workers but the test's."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


def submit(
    specmill: Callable[..., str], tmp_path: Path, name: str, records: int, *more: object, model: str = "scripted", size: int = 1
) -> str:
    prompts = tmp_path / f"{name}.txt"
    prompts.write_text("".join(f"prompt {index}.\n" for index in range(records)))
    words = [prompts, "--out", tmp_path / name, "--model", model, "--max-tokens", 8, "--shard-size", size, *more]
    return specmill("submit", *words).strip()


def finished(client: redis.Redis, run_id: str) -> int:
    return len(Ledger(client, run_id).finished())


def test_messages_lie_in_lists_in_the_order_in_which_they_are_served(broker: EmbeddedBroker, client: redis.Redis) -> None:
    app = make_app(broker.url)
    steps = [message_priority(name, again=again) for name in PRIORITIES for again in (True, False)]
    assert steps == sorted(set(steps))
    for name in reversed(PRIORITIES):
        Feeder(app, uuid.uuid4().hex, name).send(1)
    app.close()
    assert [client.llen(key) for key in queue_keys()] == [0, 1, 0, 1, 0, 1]


def test_a_run_of_higher_priority_overtakes_and_equal_ones_share(
    specmill: Callable[..., str], broker: EmbeddedBroker, client: redis.Redis, tmp_path: Path, session: ModuleType, mark: str
) -> None:
    """All are submitted before there is a worker; one worker then takes every shard of the urgent run before the last of any other."""
    low = submit(specmill, tmp_path, "low", 12, "--priority", "low")
    first = submit(specmill, tmp_path, "first", 12)
    second = submit(specmill, tmp_path, "second", 12)
    high = submit(specmill, tmp_path, "high", 12, "--priority", "high")
    found = {run["run_id"]: run["priority"] for run in json.loads(specmill("status", "--json"))["runs"]}
    assert found == {low: "low", first: "normal", second: "normal", high: "high"}
    assert "priority high" in specmill("status")
    runs = {"low": low, "first": first, "second": second, "high": high}
    with LocalWorkers(1, broker.url, tmp_path / "logs", WorkerSettings(lease_seconds=session.LEASE_SECONDS)):
        poll(lambda: all(finished(client, run_id) == 12 for run_id in runs.values()), 90, "the end of all runs")
    log = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
    order = [next(name for name, run_id in runs.items() if run_id in line) for line in log.splitlines() if " landed, attempt" in line]
    last = {name: len(order) - order[::-1].index(name) for name in runs}
    assert last["high"] < min(last["first"], last["second"], last["low"])
    assert last["low"] == len(order)
    # Each window holds four shards of each, so neither waits for the end of the other.
    assert order.index("second") < last["first"]
    assert order.index("first") < last["second"]


@pytest.mark.parametrize(
    ("model", "more", "why"),
    [
        ("scripted:fail_on=prompt", (), "more than --max-error-rate 0.5 allows"),
        ("scripted:claims=0.9", ("--mtp", "scripted", "--n", 30), "the engine is not calibrated"),
    ],
)
def test_a_keeper_holds_a_run_that_is_plainly_wrong_and_a_person_lets_it_go_on(
    specmill: Callable[..., str],
    broker: EmbeddedBroker,
    client: redis.Redis,
    tmp_path: Path,
    session: ModuleType,
    mark: str,
    model: str,
    more: tuple[object, ...],
    why: str,
) -> None:
    run_id = submit(specmill, tmp_path, "run", 96, "--max-tokens", 64, *more, model=model, size=8)
    ledger = Ledger(client, run_id)
    with LocalWorkers(1, broker.url, tmp_path / "logs", WorkerSettings(lease_seconds=session.LEASE_SECONDS)):
        reason = poll(ledger.paused, 60, "the pause")
        assert why in reason
        assert why in specmill("status")
        assert finished(client, run_id) < 12
        specmill("resume", run_id)
        poll(lambda: finished(client, run_id) == 12, 90, "the end of the run")
    assert ledger.paused() is None


def test_limits_that_are_lifted_hold_nothing(
    specmill: Callable[..., str], broker: EmbeddedBroker, client: redis.Redis, tmp_path: Path, session: ModuleType, mark: str
) -> None:
    run_id = submit(specmill, tmp_path, "run", 40, "--max-error-rate", 1, "--ignore-calibration", model="scripted:fail_on=prompt", size=8)
    assert Ledger(client, run_id).terms() == RunTerms("normal", 1.0, watch_calibration=False)
    with LocalWorkers(1, broker.url, tmp_path / "logs", WorkerSettings(lease_seconds=session.LEASE_SECONDS)):
        poll(lambda: finished(client, run_id) == 5, 60, "the end of the run")
        assert Ledger(client, run_id).paused() is None
