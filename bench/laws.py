"""The engine's law on a real model, bit for bit: whatever is drafted and however many rows run side by side, rows are plain decoding's.

    python bench/laws.py question.jsonl --column 'turns[0]' --mtp head.safetensors [--prompts 100] [--max-tokens 24]

Plain decoding of every prompt alone (depth 0, one slot) is the reference, greedy and with shared noise. Every depth at every number of
slots must give the same tokens and the same log-probabilities. One line per combination as it ends; exit code 1 when a row differs, 2 when
this machine's products are not row-invariant, where nothing of the kind is promised.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from specs import bench_spec

from producer.column_path import ColumnPath
from sampling.counter_rng import row_key
from schemas.profile import ExecutionProfile
from schemas.sampler import SamplerConfig
from worker.engine import blas, model_store

SAMPLERS = {"greedy": SamplerConfig(temperature=0.0), "shared noise": SamplerConfig(temperature=0.7, top_p=0.95)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--column", default="turns[0]")
    parser.add_argument("--model", default=model_store.SMOLLM2)
    parser.add_argument("--mtp", required=True)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--longest", type=int, help="leave out prompts of more characters")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 16, 1])
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    arguments = parser.parse_args()
    print(f"BLAS {blas.prepare()}, {arguments}", flush=True)
    from worker.engine.completion import Completion, Request
    from worker.engine.engine import Timings
    from worker.engine.mtp_engine import MTPEngine

    prompts = read_prompts(arguments)
    requests = [Request(i, 0, row_key(0, str(i), 0), prompt, None, None) for i, prompt in enumerate(prompts)]
    sizes = {"slots": max(arguments.slots), "depth": max(arguments.depth), "max_tokens": arguments.max_tokens, "records": len(prompts)}
    base = bench_spec(arguments.model, arguments.mtp, **sizes)
    loaded = MTPEngine.load(base)
    wrong = 0

    def run(name: str, depth: int, slots: int) -> list[Completion]:
        coupling = "rejection" if SAMPLERS[name].greedy else "shared-noise"
        profile = ExecutionProfile(slots=slots, depth=depth)
        spec = replace(base, sampler=SAMPLERS[name], coupling=coupling, profile=profile)
        engine = MTPEngine(loaded.trunk, loaded._head if depth else None, None, profile)
        if not engine.backend.row_invariant:
            print(f"depth {depth}, {slots} slots: the probe says that this machine is not row-invariant")
            sys.exit(2)
        return engine.complete(spec, requests, Timings(), lambda tally: None)

    for name in arguments.samplers:
        expected = run(name, 0, 1)
        print(f"{name}: {sum(len(row.token_ids) for row in expected)} tokens of plain decoding, {len(expected)} prompts alone", flush=True)
        for slots in arguments.slots:
            for depth in [*arguments.depth, *([0] if slots > 1 else [])]:
                started = time.monotonic()
                found = run(name, depth, slots)
                same = sum(essence(one) == essence(other) for one, other in zip(expected, found, strict=True))
                accepted = sum(sum(row.acceptance.accepted_by_depth) for row in found)
                wrong += len(found) - same
                print(
                    f"{name}, depth {depth}, {slots} slots: {same} of {len(found)} rows equal, {accepted} drafts accepted, "
                    f"{time.monotonic() - started:.0f} s",
                    flush=True,
                )
    print(f"{wrong} rows differ")
    return 1 if wrong else 0


def essence(row: Any) -> tuple[object, ...]:
    """What must agree."""
    return row.token_ids, row.logprobs, row.text, row.finish_reason, row.error


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """Evenly spaced prompts, so that a file sorted by category is sampled evenly."""
    column = ColumnPath.parse(arguments.column)
    records = [json.loads(line) for line in arguments.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = [str(column.of(record)) for record in records]
    prompts = [prompt for prompt in prompts if arguments.longest is None or len(prompt) <= arguments.longest]
    return prompts[:: max(1, len(prompts) // arguments.prompts)][: arguments.prompts]


if __name__ == "__main__":
    sys.exit(main())
