"""Quiet hours: what the text means, and that a worker keeps them."""

import time
import uuid
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import redis

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.fleet_status import FleetStatus
from producer.local_workers import LocalWorkers, WorkerSettings
from worker.quiet_hours import QuietHours


@pytest.mark.parametrize(
    ("text", "quiet", "busy"),
    [
        ("9-17", ["9:00", "16:59"], ["8:59", "17:00", "0:00"]),
        ("22:30-6:15", ["22:30", "23:59", "0:00", "6:14"], ["6:15", "22:29"]),
        ("9-12, 13-24", ["9:30", "23:59"], ["12:00", "0:00"]),
        ("", [], ["0:00", "12:00"]),
    ],
)
def test_hours_mean_what_they_say(text: str, quiet: list[str], busy: list[str]) -> None:
    hours = QuietHours.parse(text)
    for moment in (*quiet, *busy):
        assert hours.include(time.strptime(moment, "%H:%M")) == (moment in quiet), moment


@pytest.mark.parametrize("text", ["9", "9-9", "25-26", "9:75-10", "nine-ten", "9-17;18-19"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quiet hours"):
        QuietHours.parse(text)


def test_a_worker_rests_visibly_and_the_run_waits_for_another(
    mark: str, tmp_path: Path, session: ModuleType, help_: SimpleNamespace
) -> None:
    with EmbeddedBroker(tmp_path / "b") as broker, redis.Redis.from_url(broker.url) as client:
        settings = WorkerSettings(lease_seconds=session.LEASE_SECONDS, quiet_hours="0-12,12-24")
        with LocalWorkers(1, broker.url, tmp_path / "resting", settings):
            help_.poll(lambda: "quiet hours" in FleetStatus.look(client).text(), what="the resting worker's card")
            spec = session.make_spec(4, 2, run_id=uuid.uuid4().hex)
            with LocalWorkers(1, broker.url, tmp_path / "working") as workers:
                shards = session.MadeUpShards(spec)
                assert Coordinator(spec, tmp_path / "out", broker.url, shards, workers=workers).run().status == "complete"
        assert "landed" not in (tmp_path / "resting" / "worker-0.log").read_text()
