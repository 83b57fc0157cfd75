"""What the queue costs per shard: an engine that needs no time, one worker, and how often a part file lands.

Run: python bench/queue_overhead.py [--shards 300 --rows 8]

The peer is plain Celery (`plain_celery`): its client sends all tasks, takes the results in order and lands each with the product's own
durable writer, so that the difference is the ledger: leases, attempts, the window, progress, the journal, resumability.
"""

import base64
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from measurement import Measure, Result, arguments, in_turns
from scripted_run import MadeUpPrompts, run_scripted, scripted_spec

from producer.broker import EmbeddedBroker
from producer.coordinator import LANDED_TOGETHER
from producer.local_workers import LocalWorkers
from schemas.run_spec import RunSpec
from schemas.tables import table_from_bytes
from worker.landing import PartRecord, land_part

HERE = Path(__file__).parent
WARM_UP = 5  # shards at the beginning that are not counted


@contextlib.contextmanager
def plain_worker(url: str) -> Iterator[None]:
    """A Celery worker with one process, as Celery starts it by itself."""
    command = [sys.executable, "-m", "celery", "-A", "plain_celery", "worker", "--concurrency=1", "--loglevel=WARNING"]
    process = subprocess.Popen(command, cwd=HERE, env={**os.environ, "PLAIN_CELERY_URL": url}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def plain_milliseconds(spec: RunSpec, folder: Path) -> list[float]:
    """As `gaps`."""
    from plain_celery import generate

    shards = MadeUpPrompts(spec)
    text = spec.to_json()
    (folder / "data").mkdir(parents=True)
    results = [generate.delay(text, base64.b64encode(shards.blob(shard)).decode()) for shard in range(spec.shards)]
    moments = []
    for shard, result in enumerate(results):
        table = table_from_bytes(base64.b64decode(result.get(timeout=300)))
        result.forget()
        record = PartRecord(contract="", shard=shard, rows=table.num_rows, failed=0, content_digest="")
        land_part(folder, f"data/part-{shard:05d}.parquet", table, record)
        moments.append(time.perf_counter())
    return gaps(moments)


def gaps(moments: list[float]) -> list[float]:
    """Milliseconds per shard, from every fourth landed part to the next: up to four land together."""
    return [1000.0 * (later - earlier) / LANDED_TOGETHER for earlier, later in pairwise(moments[WARM_UP::LANDED_TOGETHER])]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--rows", type=int, default=8, help="per shard")
    args = parser.parse_args()
    shards = args.shards or (60 if args.short else 300)
    rounds = args.rounds or (2 if args.short else 5)
    result = Result(
        "queue",
        "What the queue costs per shard",
        f"An engine that needs no time, one worker, {shards} shards of {args.rows} rows per round, the "
        "time from every fourth landed part file to the next ÷ 4. "
        "Plain Celery has one task per shard, its own defaults and one process; its client lands parts with the product's durable writer.",
    )
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    cpu: list[float] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specmill-bench-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        os.environ["PLAIN_CELERY_URL"] = broker.url
        workers = stack.enter_context(LocalWorkers(1, broker.url, folder))
        stack.enter_context(plain_worker(broker.url))
        spec = scripted_spec(20 * args.rows, args.rows)
        run_scripted(spec, folder / "warm", broker.url, workers)
        plain_milliseconds(spec, folder / "warm-plain")

        def product() -> float:
            spec = scripted_spec(shards * args.rows, args.rows)
            landings = run_scripted(spec, folder / f"ours-{len(ours)}", broker.url, workers)
            ours.append(gaps(landings.moments))
            cpu.append(1000.0 * landings.cpu_seconds / shards)
            return statistics.fmean(ours[-1])

        def plain() -> float:
            theirs.append(plain_milliseconds(scripted_spec(shards * args.rows, args.rows), folder / f"plain-{len(theirs)}"))
            return statistics.fmean(theirs[-1])

        means = in_turns(rounds, product, plain)
    medians = [tuple(statistics.median(one) for one in side) for side in (ours, theirs)]
    result.add(Measure("a shard, median", "ms", medians[0], "plain Celery", medians[1], "≤ 15 ms"))
    result.add(Measure("a shard, whole time ÷ shards", "ms", means[0], "plain Celery", means[1], "ratio ≤ 1.5"))
    result.add(Measure("processor time of the coordinator per shard", "ms", tuple(cpu)))
    result.write(args.results)


if __name__ == "__main__":
    main()
