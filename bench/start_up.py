"""How long people wait for `--help`, and a run for its first worker.

Run: python bench/start_up.py [--model smollm2-135m]

A worker is ready when its engine has loaded the model. The peer of `--help` is a bare Python that imports click. Processor time is what a
machine without other work would need at least.
"""

import subprocess
import sys
import time

from measurement import Measure, Result, arguments, in_turns, processor_seconds, specmill


def seconds_of(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def engine_ready(model: str) -> float:
    """From starting an engine process to its answer that the model is loaded."""
    from specs import bench_spec

    from worker.engine.client import EngineProcess

    spec = bench_spec(model, max_tokens=8)
    engine = EngineProcess()
    started = time.perf_counter()
    try:
        engine.load(spec)
        return time.perf_counter() - started
    finally:
        engine.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.short else 7)
    result = Result("start-up", "Start-up", "Processes started one after the other.")
    ours, theirs = in_turns(rounds, lambda: seconds_of(specmill("--help")), lambda: seconds_of([sys.executable, "-c", "import click"]))
    result.add(Measure("`specmill --help`", "s", ours, "`import click`", theirs, "< 0.3 s"))
    sides = (specmill("--help"), [sys.executable, "-c", "import click"])
    ours, theirs = in_turns(rounds, *(lambda side=side: processor_seconds(lambda: seconds_of(side)) for side in sides))
    result.add(Measure("`specmill --help`, processor time", "s", ours, "`import click`", theirs))
    (ready,) = in_turns(min(rounds, 3), lambda: engine_ready(args.model))
    result.add(Measure(f"a worker's engine has loaded {args.model}", "s", ready, goal="< 5 s"))
    (busy,) = in_turns(1, lambda: processor_seconds(lambda: engine_ready(args.model)))
    result.add(Measure("the same, processor time", "s", busy))
    result.write(args.results)


if __name__ == "__main__":
    main()
