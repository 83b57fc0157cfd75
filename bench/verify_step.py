"""How long one verification of a whole batch takes, beside copying the target's logits, and beside MTPLX's sampler called token by token.

Run: python bench/verify_step.py [--rows 32 --depth 4 --vocab 151936 248320]

All sides get the same float32 logits and the same draft tokens, with their distributions made before the clock starts. The drafts come from
logits near the target's, so most are accepted and a loop that stops at a rejection judges nearly every position. "peaked" logits are a bell
curve with a few tokens far above it, as a language model's are; "flat" ones lack those, which makes nuclei of thousands of tokens. Every
verdict is compared with the float64 reference on the same random words.

MTPLX is measured where its package is installed (`pip install --no-deps mtplx`); specmill never needs it.
"""

import importlib.util
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from measurement import Measure, Result, arguments, in_turns

from sampling import (
    PositionRandom,
    Purpose,
    SamplerConfig,
    distribution_from_logits,
    sample_from_distribution,
    verify_one_token,
)
from sampling.batched import BatchedSampler, DraftStep
from sampling.rows import NO_TOKEN, RowBatch

CONFIGS = {
    "top-k 20": SamplerConfig(temperature=0.7, top_k=20),
    "top-p 0.95, top-k 20": SamplerConfig(temperature=0.7, top_p=0.95, top_k=20),
    "top-p 0.95": SamplerConfig(temperature=0.7, top_p=0.95),
    "top-p 0.95, penalties": SamplerConfig(temperature=0.7, top_p=0.95, presence_penalty=0.5),
    "no filter": SamplerConfig(temperature=1.0),
    "greedy": SamplerConfig(temperature=0.0),
}
COPY_GOALS = {"top-k 20": "ratio ≤ 3"}
MTPLX_GOALS = {"top-k 20": "ratio ≤ 0.05", "top-p 0.95": "ratio ≤ 0.2"}


def make_logits(rng: np.random.Generator, rows: int, places: int, vocab: int, peaked: bool) -> np.ndarray:
    logits = rng.normal(scale=2.5, size=(rows, places, vocab)).astype(np.float32)
    if peaked:
        heads = rng.integers(0, vocab, size=(rows, places, 30))
        heights = 10.0 + rng.gumbel(scale=2.0, size=heads.shape)
        np.put_along_axis(logits, heads, heights.astype(np.float32), axis=-1)
    return logits


def plain_loop(logits: np.ndarray, config: SamplerConfig, rows: RowBatch, drafts: list[DraftStep]) -> list[list[int]]:
    emitted = []
    for row in range(len(rows)):
        key, position = int(rows.keys[row]), int(rows.positions[row])
        held = rows.count_ids[row] != NO_TOKEN
        counts = dict(zip(rows.count_ids[row, held].tolist(), rows.counts[row, held].tolist(), strict=True))
        tokens: list[int] = []
        for place, step in enumerate(drafts):
            p = distribution_from_logits(logits[row, place], config, counts)
            decision = verify_one_token(p, step.distribution.at(row, 0), int(step.tokens[row]), PositionRandom(key, position + place))
            tokens.append(decision.token_id)
            if not decision.accepted:
                break
            counts[decision.token_id] = counts.get(decision.token_id, 0) + 1
        else:
            p = distribution_from_logits(logits[row, len(drafts)], config, counts)
            tokens.append(sample_from_distribution(p, PositionRandom(key, position + len(drafts), (Purpose.CORRECTION,))))
        emitted.append(tokens)
    return emitted


def mtplx_loop(logits: np.ndarray, config: SamplerConfig, drafts: list[DraftStep], draft_logits: np.ndarray) -> Callable[[], object]:
    """MTPLX's sampler over the same block, its draft distributions made now."""
    from mtplx import sampling as mtplx

    wanted: Any = mtplx.SamplerConfig(
        temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, presence_penalty=config.presence_penalty
    )
    rows, places = draft_logits.shape[:2]
    q = [[mtplx.distribution_from_logits(draft_logits[row, place], wanted) for place in range(places)] for row in range(rows)]

    def loop() -> int:
        rng, emitted = np.random.default_rng(0), 0
        for row in range(rows):
            for place, step in enumerate(drafts):
                p = mtplx.distribution_from_logits(logits[row, place], wanted)
                emitted += 1
                if not mtplx.verify_one_token(p, q[row][place], int(step.tokens[row]), rng).accepted:
                    break
            else:
                mtplx.sample_from_distribution(mtplx.distribution_from_logits(logits[row, places], wanted), rng)
                emitted += 1
        return emitted

    return loop


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1000.0 * (time.perf_counter() - started)


def peak_megabytes(work: Callable[[], object]) -> float:
    """Memory that a call needs beside what was there: arrays of mlx and of numpy."""
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1] + mx.get_peak_memory() - before
    tracemalloc.stop()
    return peak / 1e6


def measure(result: Result, args: Any, vocab: int, peaked: bool) -> None:
    """All samplers on one kind of logits."""
    rng = np.random.default_rng(7)
    target = make_logits(rng, args.rows, args.depth + 1, vocab, peaked)
    head = target[:, : args.depth] + rng.normal(scale=0.3, size=(args.rows, args.depth, vocab)).astype(np.float32)
    device_target, device_head = mx.array(target), [mx.array(head[:, place]) for place in range(args.depth)]
    mx.eval(device_target, device_head)
    counts = [dict.fromkeys(rng.integers(0, vocab, size=100).tolist(), 1) for _ in range(args.rows)]
    keys = rng.integers(0, 2**64, size=args.rows, dtype=np.uint64)
    rows = RowBatch.of(keys, np.arange(args.rows), token_counts=counts)
    copy = np.empty_like(target)
    for name, config in CONFIGS.items():
        if args.only not in (None, name):
            continue
        sampler = BatchedSampler(config, vocab)
        drafts: list[DraftStep] = []
        for logits in device_head:
            drafts.append(sampler.draft(logits, rows, drafts))

        def verify(sampler: BatchedSampler = sampler, drafts: list[DraftStep] = drafts) -> Any:
            return sampler.verify(device_target, rows, drafts)

        block = verify()
        for row, tokens in enumerate(plain_loop(target, config, rows, drafts)):
            assert block.tokens[row, : len(tokens)].tolist() == tokens, f"row {row} differs from the reference"
        what = f"V = {vocab:,}, {'peaked' if peaked else 'flat'}, {name}"
        ours, copying = in_turns(
            args.rounds, lambda verify=verify: milliseconds(verify), lambda: milliseconds(lambda: np.copyto(copy, target))
        )
        result.add(Measure(f"{what}: verify", "ms", ours, "np.copyto", copying, COPY_GOALS.get(name, "") if peaked else ""))
        if args.mtplx and not config.presence_penalty and config.temperature > 0:
            loop = mtplx_loop(target, config, drafts, head)
            ours, loops = in_turns(min(args.rounds, 3), lambda verify=verify: milliseconds(verify), lambda loop=loop: milliseconds(loop))
            result.add(Measure(f"{what}: verify", "ms", ours, "MTPLX's sampler", loops, MTPLX_GOALS.get(name, "") if peaked else ""))
        (drafting,) = in_turns(args.rounds, lambda sampler=sampler: milliseconds(lambda: sampler.draft(device_head[0], rows)))
        result.add(Measure(f"{what}: one draft step", "ms", drafting))
        limit = target.nbytes / 1e6
        result.add(Measure(f"{what}: memory", "MB", (peak_megabytes(verify),), goal=f"below the {limit:.0f} MB of the logits"))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--vocab", type=int, nargs="+")
    parser.add_argument("--only", choices=CONFIGS, help="one config instead of all")
    args = parser.parse_args()
    args.rows = args.rows or (8 if args.short else 32)
    args.rounds = args.rounds or (3 if args.short else 7)
    args.mtplx = importlib.util.find_spec("mtplx") is not None
    if not args.mtplx:
        print("mtplx is not installed: its sampler is left out")
    result = Result(
        "verify-step",
        "One verification of a batch",
        f"B = {args.rows}, K = {args.depth}, float32 logits, {mx.default_device().type.name}.",
    )
    for vocab in args.vocab or ([32_000] if args.short else [151_936, 248_320]):
        for peaked in (True, False):
            measure(result, args, vocab, peaked)
    result.write(args.results)


if __name__ == "__main__":
    main()
