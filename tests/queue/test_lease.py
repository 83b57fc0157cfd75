"""Claims, renewals and releases on a real Valkey."""

import threading
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest
import redis

from producer.broker import EmbeddedBroker
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from worker.lease import Lease
from worker.ledger import Ledger
from worker.redis_client import make_client
from worker.reports import Fault, LiveReport

IDLE = LiveReport(beat=1, shard=None, tally=Tally(), backend=None)


@pytest.fixture
def ledger(client: redis.Redis, session: ModuleType) -> Iterator[Ledger]:
    """A run that is open, with two shards issued."""
    run_id = uuid.uuid4().hex
    made = Ledger(client, run_id)
    made.open(session.make_spec(8, 1, run_id=run_id), done=[])
    made.issue(0, b"blob")
    made.issue(1, b"blob")
    yield made
    made.close()


def report(worker: str = "w", shard: int = 0) -> AttemptReport:
    backend = Backend(device="cpu", chip="c", mlx="-", blas="", row_invariant=True)
    return AttemptReport("r", shard, 1, worker, backend, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, Tally(rows=1))


def keys(client: redis.Redis, ledger: Ledger) -> set[str]:
    return {key.decode() for key in client.scan_iter(f"{ledger._prefix}:*")}


def test_only_one_of_many_simultaneous_claims_wins(ledger: Ledger, broker: EmbeddedBroker) -> None:
    won: list[Lease] = []
    start = threading.Barrier(8)

    def claim(name: str) -> None:
        with make_client(broker.url) as own:
            mine = Ledger(own, ledger._prefix.removeprefix("run:"))
            start.wait()
            lease = Lease.claim(mine, mine, 0, name)
            if lease is not None:
                won.append(lease)

    threads = [threading.Thread(target=claim, args=(f"w{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert ledger.attempts(0) == 1


def test_every_claim_that_wins_is_counted_before_anything_runs(ledger: Ledger) -> None:
    for attempt in (1, 2, 3):
        assert ledger.claim(0, f"w/{attempt}", 5.0) == attempt
        assert ledger.claim(0, "other/1", 5.0) == 0
        assert ledger.attempts(0) == attempt
        assert ledger.release(0, f"w/{attempt}")


def test_the_same_claim_asked_again_after_a_lost_answer_is_the_same_attempt(ledger: Ledger) -> None:
    assert ledger.claim(0, "w/1", 5.0) == 1
    assert ledger.claim(0, "w/1", 5.0) == 1


def test_a_forgiven_attempt_does_not_count(ledger: Ledger) -> None:
    ledger.claim(0, "w/1", 5.0)
    assert ledger.release(0, "w/1", forgive=True)
    assert ledger.attempts(0) == 0


def test_release_is_for_the_holder_only(ledger: Ledger) -> None:
    ledger.claim(0, "w/1", 5.0)
    assert not ledger.release(0, "w/2")
    assert not ledger.release(0, "v/")
    assert ledger.release(0, "w/1")
    assert not ledger.release(0, "w/1")
    assert ledger.claim(0, "v/1", 5.0) == 2


def test_a_dead_workers_lease_goes_by_its_name(ledger: Ledger) -> None:
    ledger.claim(0, "host:12/abc", 5.0)
    assert not ledger.release(0, "host:1/")
    assert ledger.release(0, "host:12/")


def test_a_lease_in_use_outlives_its_time_and_a_lease_left_alone_does_not(
    ledger: Ledger, client: redis.Redis, help_: SimpleNamespace
) -> None:
    kept = Lease.claim(ledger, ledger, 0, "w", seconds=0.3)
    assert kept is not None
    ledger.claim(1, "w/x", 0.3)
    with kept:
        help_.poll(lambda: ledger.claim(1, "v/x", 5.0), what="the end of a lease that nobody renews")
        assert ledger.claim(0, "v/y", 5.0) == 0
        assert not kept.lost
    help_.poll(lambda: ledger.claim(0, "v/y", 5.0), what="the end of a lease whose context has ended")


def test_renewal_takes_a_lease_back_that_ran_out_unnoticed(ledger: Ledger, client: redis.Redis) -> None:
    ledger.claim(0, "w/1", 5.0)
    client.delete(ledger._of("lease", 0))
    assert ledger.renew(0, "w/1", 5.0) == "held"
    assert ledger.claim(0, "v/1", 5.0) == 0


def test_renewal_learns_of_loss_of_landing_and_of_the_end(ledger: Ledger, client: redis.Redis, help_: SimpleNamespace) -> None:
    lease = Lease.claim(ledger, ledger, 0, "w", seconds=0.1)
    assert lease is not None
    with lease:
        client.set(ledger._of("lease", 0), "thief/1", px=5000)
        help_.poll(lambda: lease.lost, what="the notice of a lost lease")
    assert client.get(ledger._of("lease", 0)) == b"thief/1"

    ledger.settle(0)
    assert ledger.renew(0, "w/1", 5.0) == "lost"
    assert client.get(ledger._of("lease", 0)) is None
    ledger.cancel()
    assert ledger.renew(1, "w/1", 5.0) == "cancelled"
    ledger.close()
    assert ledger.renew(1, "w/1", 5.0) == "cancelled"
    assert not keys(client, ledger)


def test_a_delivery_counts_once_and_never_from_a_lost_lease(ledger: Ledger) -> None:
    ledger.claim(0, "w/1", 5.0)
    assert ledger.deliver(0, "v/1", b"other", report("v"), IDLE) == "lost"
    assert ledger.deliver(0, "w/1", b"rows", report(), IDLE) == "delivered"
    assert ledger.deliver(0, "w/1", b"rows again", report(), IDLE) == "delivered"  # asked again after a lost answer
    assert ledger.claim(0, "v/2", 5.0) == 0
    assert ledger.next_entry(1.0) == 0
    assert ledger.next_entry(0.01) is None
    assert ledger.result(0) == (b"rows", report())
    ledger.settle(0)
    assert ledger.result(0) is None
    assert ledger.claim(0, "v/3", 5.0) == 0


@pytest.mark.parametrize("late", ["deliver", "fault", "live", "claim", "record"])
def test_a_worker_that_wakes_up_after_the_end_of_a_run_leaves_nothing(ledger: Ledger, client: redis.Redis, late: str) -> None:
    ledger.claim(0, "w/1", 5.0)
    ledger.close()
    doing: dict[str, Callable[[], object]] = {
        "deliver": lambda: ledger.deliver(0, "w/1", b"rows", report(), IDLE),
        "fault": lambda: ledger.record_fault(Fault("w", 0, "EngineError", "x")),
        "live": lambda: ledger.report_live("w", IDLE),
        "claim": lambda: ledger.claim(1, "w/2", 5.0),
        "record": lambda: ledger.begin_record(0, 0),
    }
    doing[late]()
    assert not keys(client, ledger)


def test_every_key_has_a_time_to_live(ledger: Ledger, client: redis.Redis) -> None:
    ledger.claim(0, "w/1", 5.0)
    ledger.report_live("w", IDLE)
    ledger.record_fault(Fault("w", 1, "EngineError", "x"))
    ledger.deliver(0, "w/1", b"rows", report(), IDLE)
    ledger.settle(5)
    ledger.issue(6, b"blob")
    ledger.cancel()
    ledger.pause("why not")
    ledger.be_careful(6)
    ledger.begin_record(1, 0)
    ledger.refresh()
    found = {key: client.ttl(key) for key in keys(client, ledger)}
    assert len(found) >= 13
    assert all(seconds > 0 for seconds in found.values()), found
    ledger.close()
    assert not keys(client, ledger)


def test_a_new_session_keeps_results_and_leases_and_forgets_attempts(ledger: Ledger, session: ModuleType) -> None:
    ledger.issue(2, b"blob")
    ledger.claim(0, "w/1", 5.0)
    ledger.deliver(0, "w/1", b"rows", report(), IDLE)
    ledger.claim(1, "w/2", 5.0)
    ledger.open(session.make_spec(8, 1, run_id=ledger._prefix.removeprefix("run:")), done=[2, 7])
    assert ledger.states([0, 1, 2, 3]) == {0: "result", 1: "leased", 2: "absent", 3: "absent"}
    assert ledger.attempts(1) == 0
    assert ledger.job(2) is None
    assert [ledger.claim(shard, "v/1", 5.0) for shard in (0, 1, 2, 3, 7)] == [0, 0, 0, 1, 0]
