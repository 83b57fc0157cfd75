"""The fault matrix: whatever breaks while a run goes on, the dataset is that of a run that nobody disturbed, and nothing is left behind.

Patience and leases are cut to a second or two, so that the whole matrix takes about a minute; `bench/chaos.py` has the long form, with the
product's own times.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from chaos_fleet import HASTY, ChaosFleet, files_of, poll

from schemas.shard import ShardMessage
from worker.app import QUEUE, TASK, make_app

SHAPE = (48, 3, 2, "scripted:seconds=0.04")
WORKERS = 2


@pytest.fixture
def fleet(machines: ChaosFleet, undisturbed: dict[str, str]) -> Iterator[ChaosFleet]:
    """A run that has landed its first shards; its end is waited for and judged when the test has done its worst."""
    poll(lambda: len(machines.pids("worker")) == 2, what="two workers")
    machines.next_run()
    goal = random.randrange(1, 4)
    poll(lambda: machines.landed() >= goal, what=f"{goal} parts")
    assert machines.running
    try:
        yield machines
        machines.finish()
        poll(lambda: len(machines.pids("engine")) <= len(machines.pids("worker")), what="the end of orphaned engines")
        assert machines.complaints(undisturbed) == []
    except AssertionError:
        print(machines.logs())
        raise


@pytest.mark.parametrize("victim", ["engine", "worker", "supervisor", "coordinator", "server"])
def test_kill(fleet: ChaosFleet, victim: str) -> None:
    os.kill(random.choice(fleet.pids(victim)), signal.SIGKILL)
    if victim == "supervisor":
        fleet.start_worker()


def test_a_worker_stopped_for_longer_than_its_lease(fleet: ChaosFleet) -> None:
    """It wakes up with a shard that others have finished meanwhile."""
    lease = poll(fleet.leases)
    pid = int(next(iter(lease.values())).rpartition(":")[2])
    os.kill(pid, signal.SIGSTOP)
    poll(lambda: pid not in [int(name.rpartition(":")[2]) for name in fleet.leases().values()], what="the end of its lease")
    poll(lambda: fleet.landed() >= SHAPE[0] // SHAPE[1] // 2 or not fleet.running)
    os.kill(pid, signal.SIGCONT)


def test_tcp_resets(fleet: ChaosFleet) -> None:
    for _ in range(4):
        random.choice(fleet.networks).reset()
        before = fleet.landed()
        poll(lambda before=before: fleet.landed() > before or not fleet.running)


def test_a_network_that_swallows_everything(fleet: ChaosFleet) -> None:
    fleet.networks[0].blackhole()
    before = fleet.landed()
    started = time.monotonic()
    poll(lambda: time.monotonic() - started > 2 * HASTY["lease"] and fleet.landed() > before)
    fleet.networks[0].heal()


def test_a_broker_that_comes_back_empty(fleet: ChaosFleet) -> None:
    fleet.wipe()


def test_a_full_disk(fleet: ChaosFleet) -> None:
    """Every byte that the coordinator writes beyond a limit is refused: it says so, leaves no half file, and goes on when there is room."""
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    fleet.coordinator.wait()
    # A half-written file of the killed one may still lie there; the next one sweeps it up.
    before = {name: digest for name, digest in files_of(fleet.out).items() if name.startswith("part-")}
    assert fleet.start_coordinator(file_bytes=3000).wait(90) == 1
    assert "LandingError" in fleet.logs() or "OSError" in fleet.logs()
    assert files_of(fleet.out) == before
    fleet.start_coordinator()


def test_messages_that_are_garbage_old_or_there_twice(fleet: ChaosFleet) -> None:
    app = make_app(fleet.broker_url)
    run_id = json.loads((fleet.out / "manifest.json").read_text())["spec"]["run_id"]
    for shard in range(SHAPE[0] // SHAPE[1]):
        app.send_task(TASK, args=(ShardMessage(run_id, shard).encode(),), queue=QUEUE, priority=random.choice((0, 5)))
    message = ShardMessage(run_id, 1).encode()
    for arguments in (({**message, "v": 0},), ({**message, "path": "../../x"},), (), (7,)):
        app.send_task(TASK, args=arguments, queue=QUEUE)
    app.send_task("worker.generate", args=({"v": 0},), queue=QUEUE)
    app.close()
    for garbage in (b"\x80\x04pickle", b'{"body": 1}', b""):
        fleet.client.rpush(QUEUE, garbage)
    poll(lambda: fleet.client.llen(QUEUE) == 0, what="an empty queue")


def test_a_worker_whose_clock_is_a_day_ahead(fleet: ChaosFleet) -> None:
    worker = fleet.start_worker(clock=86_400.0)
    fleet.finish()
    worker.terminate()
    worker.wait(10)


def test_everything_at_once(fleet: ChaosFleet) -> None:
    """Several faults, one after the other, each before the run has recovered from the one before it."""
    faults: list[Callable[[], object]] = [
        fleet.networks[0].reset,
        fleet.wipe,
        lambda: os.kill(random.choice(fleet.pids("engine") or fleet.pids("worker")), signal.SIGKILL),
        lambda: os.kill(random.choice(fleet.pids("worker")), signal.SIGKILL),
    ]
    random.shuffle(faults)
    for fault in faults:
        fault()
        time.sleep(random.random() * 0.3)
