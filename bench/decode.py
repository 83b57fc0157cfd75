"""Tokens per second of the engine against mlx-lm's `batch_generate`: same model, same prompt ids, same B, alternately in one process.

Run: python bench/decode.py PROMPTS.jsonl [--column 'turns[0]'] [--mtp HEAD] [--batch 1 8 16] [--depth 0 1] [--temperature 0.7 --top-p 0.95]

Decode rates leave the prefill out on both sides (mlx-lm's own statistics; the engine's draft + verify + commit); whole rates divide all new
tokens by all wall time. Greedy or sampled, both sides stop at the model's end tokens; a sampled peer draws other tokens, so rates are
compared, never wall times.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from producer.column_path import ColumnPath
from sampling.counter_rng import row_key
from schemas.profile import ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from worker.engine import blas, model_store


@dataclass(frozen=True)
class Rate:
    """One side's result of one round, tokens per second."""

    decode: float
    whole: float
    note: str = ""


def read_prompts(path: Path, column: str, count: int, longest: int | None = None) -> list[str]:
    """Evenly spaced prompts of a JSONL file of at most `longest` characters, so that a file sorted by category is sampled evenly."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = [str(ColumnPath.parse(column).of(record)) for record in records]
    prompts = [prompt for prompt in prompts if longest is None or len(prompt) <= longest]
    return prompts[:: max(1, len(prompts) // count)][:count]


def make_spec(args: argparse.Namespace, folder: Path, slots: int, depth: int) -> RunSpec:
    files = model_store.digest_folder(folder)
    head = None
    if depth:
        head_files = model_store.digest_head(model_store.resolve_head(args.mtp))
        head = ModelRef(args.mtp, model_store.combined_digest(head_files), head_files)
    return RunSpec(
        run_id="bench",
        model=ModelRef(args.model, model_store.combined_digest(files), files),
        head=head,
        sampler=SamplerConfig(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k),
        max_tokens=args.max_tokens,
        stop=(),
        samples=1,
        seed=0,
        coupling="rejection",
        profile=ExecutionProfile(slots=slots, depth=depth),
        raw=False,
        logprobs=False,
        shard_size=args.prompts,
        records=args.prompts,
        prompts_digest="",
    )


def run_engine(spec: RunSpec, engine: Any, prompts: Sequence[str]) -> Rate:
    from worker.engine.completion import Request
    from worker.engine.engine import Timings

    requests = [Request(i, 0, row_key(0, str(i), 0), prompt, None, None) for i, prompt in enumerate(prompts)]
    timings = Timings()
    started = time.perf_counter()
    completions = engine.complete(spec, requests, timings, lambda tally: None)
    wall = time.perf_counter() - started
    assert all(completion.error is None for completion in completions)
    tokens = sum(len(completion.token_ids) for completion in completions)
    cycles = sum(completion.acceptance.cycles for completion in completions)
    seconds = f"prefill {timings.prefill:.1f} draft {timings.draft:.1f} verify {timings.verify:.1f} commit {timings.commit:.2f} s"
    return Rate(tokens / (timings.draft + timings.verify + timings.commit), tokens / wall, f"{tokens / cycles:.2f} tokens/cycle, {seconds}")


def run_peer(model: Any, tokenizer: Any, ids: list[list[int]], slots: int, spec: RunSpec) -> Rate:
    from mlx_lm.generate import batch_generate
    from mlx_lm.sample_utils import make_sampler

    sampler = make_sampler(temp=spec.sampler.temperature, top_p=spec.sampler.top_p, top_k=spec.sampler.top_k)
    started = time.perf_counter()
    response = batch_generate(
        model,
        tokenizer,
        ids,
        max_tokens=spec.max_tokens,
        sampler=sampler,
        completion_batch_size=slots,
        prefill_batch_size=min(slots, 8),
    )
    wall = time.perf_counter() - started
    stats = response.stats
    return Rate(stats.generation_tps, stats.generation_tokens / wall, f"prefill {stats.prompt_time:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--column", default="turns[0]")
    parser.add_argument("--model", default=model_store.SMOLLM2)
    parser.add_argument("--mtp")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--depth", type=int, nargs="+", default=[0])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"BLAS {blas.prepare()}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}, {args}")
    import mlx.core as mx
    from mlx_lm.utils import load

    from worker.engine.encoding import encode_prompt
    from worker.engine.mtp_engine import MTPEngine

    folder = model_store.resolve_model(args.model)
    prompts = read_prompts(args.file, args.column, args.prompts)
    model, tokenizer = load(str(folder))
    model.set_dtype(mx.float32)
    for slots in args.batch:
        specs = {depth: make_spec(args, folder, slots, depth) for depth in args.depth}
        engines = {depth: MTPEngine.load(spec) for depth, spec in specs.items()}
        few = prompts[: max(8, min(args.prompts, 4 * slots))]
        ids = [encode_prompt(request, tokenizer, raw=False) for request in _requests(few)]
        ratios: dict[int, list[tuple[float, float]]] = {depth: [] for depth in args.depth}
        for _ in range(args.rounds):
            peer = run_peer(model, tokenizer, ids, slots, specs[args.depth[0]])
            print(f"B={slots} mlx-lm: decode {peer.decode:.1f} whole {peer.whole:.1f} tok/s; {peer.note}", flush=True)
            for depth, spec in specs.items():
                ours = run_engine(spec, engines[depth], few)
                ratios[depth].append((ours.decode / peer.decode, ours.whole / peer.whole))
                print(f"B={slots} K={depth}: decode {ours.decode:.1f} whole {ours.whole:.1f} tok/s; {ours.note}", flush=True)
        for depth, pairs in ratios.items():
            decode, whole = (sorted(values) for values in zip(*pairs, strict=True))
            print(
                f"B={slots} K={depth}: ratio to mlx-lm, decode {decode[0]:.2f}/{statistics.median(decode):.2f}/{decode[-1]:.2f}, "
                f"whole {whole[0]:.2f}/{statistics.median(whole):.2f}/{whole[-1]:.2f} (min/median/max)",
                flush=True,
            )


def _requests(prompts: Sequence[str]) -> list[Any]:
    from worker.engine.completion import Request

    return [Request(i, 0, 0, prompt, None, None) for i, prompt in enumerate(prompts)]


if __name__ == "__main__":
    main()
