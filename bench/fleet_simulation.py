"""A fleet of a thousand workers, on paper: what the tail costs, and what breaks first.

Run: python bench/fleet_simulation.py [--shard-seconds 60 --landing-ms 10]

The queue is simulated event by event: workers that take the next shard, and one coordinator that lands one result after the other and only
then hands out the next shard of its window. What every worker asks of the broker is added up from what the code does.
"""

import argparse
import heapq
import random
from collections import deque
from dataclasses import dataclass

from worker.feeder import WINDOW

ROWS = 64
COMMANDS_PER_SHARD = 40  # sent by worker and coordinator; tests/test_counts.py holds them down
COMMANDS_PER_WORKER_SECOND = 0.5 + 1.0 + 2.5 + 1.0  # a lease renewed every 2 s, a live report, the keeper's look every 2 s, Celery's own
BROKER_COMMANDS_PER_SECOND = 50_000.0  # a Valkey on one core, cautiously
MESSAGE_BYTES, BLOB_BYTES, LEDGER_BYTES = 1_200, 12_000, 800


@dataclass(frozen=True)
class Outcome:
    """What one simulated run came to.

    Attributes:
        efficiency: work ÷ (workers × seconds), tail included.
        busy: share of the time that the coordinator landed results.
        tail: seconds from the first idle worker to the end.
    """

    efficiency: float
    busy: float
    tail: float


def shard_seconds(draw: random.Random, mean: float) -> float:
    """Rows of uneven length, 1 to twice the mean, summed up over a shard."""
    return sum(draw.uniform(0, 2 * mean / ROWS) for _ in range(ROWS))


def simulate(workers: int, shards: int, mean: float, landing: float, seed: int = 1) -> Outcome:
    """One run.

    Args:
        workers: how many.
        shards: of the run.
        mean: seconds of a shard, on the average.
        landing: seconds that the coordinator needs for a shard: feeding, landing, settling.
        seed: of the shards' lengths.
    """
    draw = random.Random(seed)
    fresh = deque(shard_seconds(draw, mean) for _ in range(shards))
    work = sum(fresh)
    queued: deque[float] = deque()
    idle = workers
    finishing: list[float] = []  # heap of moments
    free_at = busy = now = first_idle = 0.0
    in_flight = 0

    def hand_out() -> None:
        nonlocal in_flight, idle
        while fresh and in_flight < WINDOW * workers:
            queued.append(fresh.popleft())
            in_flight += 1
        while idle and queued:
            heapq.heappush(finishing, now + queued.popleft())
            idle -= 1

    hand_out()
    landings: deque[float] = deque()  # moments at which the coordinator is through with a result
    while finishing or landings:
        if landings and (not finishing or landings[0] <= finishing[0]):
            now = landings.popleft()
            in_flight -= 1
        else:
            now = heapq.heappop(finishing)
            idle += 1
            free_at = max(free_at, now) + landing
            busy += landing
            landings.append(free_at)
        hand_out()
        if idle and not fresh and not queued and not first_idle:
            first_idle = now
    return Outcome(work / (workers * now), busy / now, now - first_idle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard-seconds", type=float, default=60.0)
    parser.add_argument("--landing-ms", type=float, default=10.0, help="of the coordinator per shard; bench/queue_overhead.py measures it")
    parser.add_argument("--shards", type=int, default=20, help="per worker")
    args = parser.parse_args()
    landing = args.landing_ms / 1000
    print(f"shards of {args.shard_seconds:g} s, {args.shards} per worker, {args.landing_ms:g} ms of the coordinator for each")
    print("workers  efficiency  tail s  coordinator busy  broker commands/s  of a core  broker MB")
    for workers in (1, 8, 32, 100, 300, 1000, 3000, 10_000):
        outcome = simulate(workers, workers * args.shards, args.shard_seconds, landing)
        commands = workers / args.shard_seconds * COMMANDS_PER_SHARD + workers * COMMANDS_PER_WORKER_SECOND
        memory = WINDOW * workers * (MESSAGE_BYTES + BLOB_BYTES + LEDGER_BYTES) / 1e6
        share = commands / BROKER_COMMANDS_PER_SECOND
        words = f"{workers:7,} {outcome.efficiency:11.3f} {outcome.tail:7.0f} {outcome.busy:17.2f}"
        print(f"{words} {commands:18,.0f} {share:10.2f} {memory:10.1f}")
    limits = {
        "the coordinator's landing": args.shard_seconds / landing,
        "the broker's commands": BROKER_COMMANDS_PER_SECOND / (COMMANDS_PER_SHARD / args.shard_seconds + COMMANDS_PER_WORKER_SECOND),
    }
    first = min(limits, key=lambda name: limits[name])
    print(f"breaks first: {first}, at about {limits[first]:,.0f} workers; " + ", ".join(f"{k} at {v:,.0f}" for k, v in limits.items()))
    print("shards per worker and the tail, 1,000 workers:")
    for shards in (1, 2, 4, 8, 16, 32):
        outcome = simulate(1000, 1000 * shards, args.shard_seconds, landing)
        print(f"  {shards:3} shards of {args.shard_seconds:g} s: efficiency {outcome.efficiency:.3f}, tail {outcome.tail:.0f} s")


if __name__ == "__main__":
    main()
