"""How long one verification of a whole batch takes, against the float64 reference called once per token.

Run: python bench/verify_step.py [--rows 32 --depth 4 --vocab 151936 --repeats 7]

Both sides get the same float32 logits, the same draft distributions (drawn before the clock starts) and the same random words, and must
emit the same tokens. The drafts come from logits near the target's, so most are accepted and the reference, which stops at a rejection,
judges nearly every position. "peaked" logits are a bell curve with a few tokens far above it, as a language model's are; "flat" ones lack
those, which makes nuclei of thousands of tokens.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np

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


def clock(work: Callable[[], object], repeats: int) -> tuple[list[float], object]:
    """Seconds of each repeat after one that is not counted, and the last result."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return seconds, result


def spread(seconds: list[float]) -> str:
    low, middle, high = (1000.0 * value for value in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{low:8.1f} {middle:8.1f} {high:8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=CONFIGS, help="one config instead of all")
    args = parser.parse_args()

    print(f"B={args.rows} K={args.depth} V={args.vocab} float32, {mx.default_device()}; milliseconds: min, median, max")
    print(f"{'logits':8} {'config':22} {'batched':>26}   {'reference':>26}   {'draft step':>26}   ratio  accepted/row")
    for peaked in (True, False):
        rng = np.random.default_rng(7)
        target = make_logits(rng, args.rows, args.depth + 1, args.vocab, peaked)
        head = target[:, : args.depth] + rng.normal(scale=0.3, size=(args.rows, args.depth, args.vocab)).astype(np.float32)
        device_target, device_head = mx.array(target), [mx.array(head[:, place]) for place in range(args.depth)]
        mx.eval(device_target, device_head)
        counts = [dict.fromkeys(rng.integers(0, args.vocab, size=100).tolist(), 1) for _ in range(args.rows)]
        keys = rng.integers(0, 2**64, size=args.rows, dtype=np.uint64)
        rows = RowBatch.of(keys, np.arange(args.rows), token_counts=counts)
        for name, config in CONFIGS.items():
            if args.only not in (None, name):
                continue
            sampler = BatchedSampler(config, args.vocab)
            drafting, _ = clock(lambda: sampler.draft(device_head[0], rows), args.repeats)  # noqa: B023 - called at once
            drafts: list[DraftStep] = []
            for logits in device_head:
                drafts.append(sampler.draft(logits, rows, drafts))
            batched, block = clock(lambda: sampler.verify(device_target, rows, drafts), args.repeats)  # noqa: B023
            reference, plain = clock(lambda: plain_loop(target, config, rows, drafts), max(1, args.repeats // 3))  # noqa: B023
            for row, tokens in enumerate(plain):
                assert block.tokens[row, : len(tokens)].tolist() == tokens, f"row {row} differs from the reference"
            ratio = statistics.median(reference) / statistics.median(batched)
            print(
                f"{'peaked' if peaked else 'flat':8} {name:22} {spread(batched)}   {spread(reference)}   {spread(drafting)}"
                f"   {ratio:5.1f}  {block.accepted.mean():.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
