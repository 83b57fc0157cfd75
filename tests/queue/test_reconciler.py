"""What the reconciler calls lost, with a clock of its own on a real Valkey."""

import uuid
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import redis

from producer.broker import EmbeddedBroker
from schemas.shard import ShardMessage
from worker.app import QUEUE, TASK, UNACKED_KEY, make_app, message_priority, queue_keys
from worker.ledger import Ledger
from worker.reconciler import PATIENCE_SECONDS, UNACKED_SECONDS, Reconciler
from worker.run_terms import PRIORITIES

LEASE = 1.0


@pytest.fixture
def scene(client: redis.Redis, session: ModuleType, help_: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """A run with shard 0 issued, a reconciler, and `scene.now`."""
    run_id = uuid.uuid4().hex
    made = SimpleNamespace(now=100.0, run_id=run_id, ledger=Ledger(client, run_id), client=client)
    made.ledger.open(session.make_spec(8, 1, run_id=run_id), done=[])
    made.ledger.issue(0, b"blob")
    made.reconciler = Reconciler(client, run_id, lease_seconds=LEASE, clock=lambda: made.now)
    made.look = lambda: made.reconciler.look([0])
    help_.poll(lambda: client.info("server")["uptime_in_seconds"] >= LEASE)
    yield made
    made.ledger.close()
    client.delete(*queue_keys(), UNACKED_KEY)


def test_a_shard_that_nobody_has_is_lost_after_the_patience_and_named_once(scene: SimpleNamespace) -> None:
    assert scene.look().lost == ()
    scene.now += PATIENCE_SECONDS - 0.1
    assert scene.look().lost == ()
    scene.now += 0.2
    assert scene.look().lost == (0,)
    assert scene.look().lost == ()


@pytest.mark.parametrize("priority", [message_priority(name, again=again) for name in PRIORITIES for again in (True, False)])
def test_a_queued_shard_is_not_lost_whatever_its_priority(scene: SimpleNamespace, broker: EmbeddedBroker, priority: int) -> None:
    app = make_app(broker.url)
    app.send_task(TASK, args=(ShardMessage(scene.run_id, 0).encode(),), queue=QUEUE, priority=priority)
    app.close()
    scene.client.lpush(QUEUE, b"garbage")
    scene.client.hset(UNACKED_KEY, "tag", b"garbage")
    for _ in range(3):
        assert scene.look().lost == ()
        assert scene.reconciler.adrift([0]) == ()
        scene.now += PATIENCE_SECONDS
    (key,) = [key for key in queue_keys() if any(b"body" in text for text in scene.client.lrange(key, 0, -1))]
    assert (key == QUEUE) == (priority == 0)
    message = scene.client.rpop(key) if key != QUEUE else scene.client.lrange(key, -1, -1)[0]
    scene.client.delete(key)
    scene.client.hset(UNACKED_KEY, "tag2", b"[" + message + b', "", "specmill"]')
    assert scene.look().lost == ()
    scene.now += PATIENCE_SECONDS
    assert scene.look().lost == ()
    assert scene.reconciler.adrift([0]) == (0,)
    scene.now += UNACKED_SECONDS - PATIENCE_SECONDS
    assert scene.look().lost == (0,)  # whoever received it does not acknowledge it any more
    scene.client.delete(UNACKED_KEY)
    scene.look()
    scene.now += PATIENCE_SECONDS
    assert scene.look().lost == (0,)


def test_a_leased_shard_is_not_lost(scene: SimpleNamespace) -> None:
    scene.ledger.claim(0, "w/1", 30.0)
    for _ in range(3):
        assert scene.look().lost == ()
        assert scene.reconciler.adrift([0]) == ()
        scene.now += PATIENCE_SECONDS


def test_an_unannounced_result_is_found(scene: SimpleNamespace) -> None:
    scene.client.hset(f"run:{scene.run_id}:result:0", mapping={"rows": b"", "report": b""})
    found = scene.look()
    assert (found.finished, found.lost) == ((0,), ())


def test_nothing_is_lost_before_a_lease_time_of_unbroken_contact(scene: SimpleNamespace) -> None:
    scene.reconciler = Reconciler(scene.client, scene.run_id, lease_seconds=30.0, clock=lambda: scene.now)
    scene.reconciler._uptime = lambda: 1000.0
    scene.look()
    scene.now += 29.0
    assert scene.look().lost == ()
    scene.reconciler.contact_broken()
    scene.look()
    scene.now += 29.0
    assert scene.look().lost == ()
    scene.now += 2.0
    assert scene.look().lost == (0,)


def test_nothing_is_lost_while_the_server_is_young(scene: SimpleNamespace) -> None:
    scene.reconciler = Reconciler(scene.client, scene.run_id, lease_seconds=30.0, clock=lambda: scene.now)
    scene.reconciler._uptime = lambda: 29.0
    scene.look()
    scene.now += 100.0
    assert scene.look().lost == ()
