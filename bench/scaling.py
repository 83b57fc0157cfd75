"""How well 1 to 32 workers share a run: an engine that sleeps a fixed time per token, rows of uneven length, the tail included.

Run: python bench/scaling.py [--workers 1 8 32 --shards 16 --seconds 10]

Every worker is a real one with a process for its engine; the engine sleeps, so that a few cores are enough for many. Efficiency is the
engines' own seconds ÷ (workers × the run's seconds), from the coordinator's start to the last part file.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import pyarrow.dataset as pds
from measurement import Measure, Result, arguments
from scripted_run import run_scripted, scripted_spec

from producer.broker import EmbeddedBroker
from producer.local_workers import LocalWorkers

ROWS, TOKENS = 16, 32  # of a shard, and of a row at most


def efficiency(count: int, shards: int, token_seconds: float) -> float:
    """One run of `count` workers with `shards` shards each."""
    model = f"scripted:token_seconds={token_seconds:g}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specmill-bench-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        workers = stack.enter_context(LocalWorkers(count, broker.url, folder))
        # One row a shard, so that every worker has its engine before the clock starts.
        run_scripted(scripted_spec(6 * count, 1, model=model, max_tokens=TOKENS), folder / "warm", broker.url, workers)
        spec = scripted_spec(count * shards * ROWS, ROWS, model=model, max_tokens=TOKENS)
        started = time.perf_counter()
        landings = run_scripted(spec, folder / "out", broker.url, workers)
        seconds = landings.moments[-1] - started
        tokens = pds.dataset(folder / "out" / "data").to_table(["completion_tokens"])["completion_tokens"].to_numpy().sum()
    return float(tokens) * token_seconds / (count * seconds)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--shards", type=int, default=16, help="per worker")
    parser.add_argument("--seconds", type=float, help="of a shard, about")
    args = parser.parse_args()
    counts = args.workers or ([1, 4] if args.short else [1, 2, 4, 8, 16, 32])
    seconds = args.seconds or (1.0 if args.short else 10.0)
    rounds = args.rounds or 1
    result = Result(
        "scaling",
        "Workers that share a run",
        f"{args.shards} shards per worker, {ROWS} rows of 1 to {TOKENS} tokens in each, about {seconds:g} s a shard, real workers whose "
        "engines sleep. Efficiency: the engines' seconds ÷ (workers × seconds of the run), tail included.",
    )
    token_seconds = seconds / (ROWS * (TOKENS + 1) / 2)
    for count in counts:
        values = tuple(efficiency(count, args.shards, token_seconds) for _ in range(rounds))
        result.add(Measure(f"{count} workers, efficiency", "", values, goal="≥ 0.95"))
    result.write(args.results)


if __name__ == "__main__":
    main()
