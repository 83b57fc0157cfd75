"""What a shard asks of the broker, in counts that no machine changes. A change that makes one grow has to say so here."""

import time
from pathlib import Path
from types import ModuleType

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers
from worker.redis_client import make_client

SHARDS, ROWS = 12, 4


def test_a_shard_is_one_message_and_few_commands(mark: str, tmp_path: Path, session: ModuleType) -> None:
    spec = session.make_spec(SHARDS * ROWS, ROWS)
    with EmbeddedBroker(tmp_path / "broker") as broker, LocalWorkers(1, broker.url, tmp_path) as workers, make_client(broker.url) as client:
        started = time.monotonic()
        Coordinator(spec, tmp_path / "out", broker.url, session.MadeUpShards(spec), workers=workers).run()
        seconds = time.monotonic() - started
        stats = client.info("commandstats")

    def calls(command: str) -> int:
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])

    assert calls("lpush") == SHARDS  # a message stands for all rows of its shard; a retry would be one more
    # A job, a result and a settlement each; every two seconds a look at what waits, and at the workers' cards.
    for command in ("mget", "hmget", "setbit"):
        assert SHARDS <= calls(command) <= SHARDS + 10 + seconds, command
    # Claim, two reports and a delivery; renewals and the locks of keepers come every two seconds.
    assert calls("evalsha") <= 4 * SHARDS + 10 + 3 * seconds
    # Received, started, succeeded, and Celery's heartbeat.
    assert calls("publish") <= 3 * SHARDS + 10 + seconds
