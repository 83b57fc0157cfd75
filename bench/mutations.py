"""Which check catches which broken engine, and after how many tokens.

Run: python bench/mutations.py [--samples 16000]

Each mutant is the real engine with one deliberate fault, on a tiny random model of 6 tokens at T = 1 and depth 2. Its completions (of up to
3 tokens) are handed to the checks in growing prefixes, until one fires:

    decisions    doctor's comparison of the batched sampler with the float64 reference, decision by decision; it judges about 600 drafts
    sequences    doctor's G-test of whole completions against exact enumeration
    calibration  every run's own accepted drafts against their acceptance probabilities
    surprise     verify's teacher forcing: log p of the tokens against its expectation, with the honest target
    logprob_sum  verify's teacher forcing: the row's own logprob_sum against the honest target's

It prints a Markdown table of completion tokens; `-` is: not within all samples. `decisions` does not count tokens: it fires or it does not.
"""

import argparse
import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worker.engine import blas

blas.prepare()  # before anything imports mlx

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from sampling import SamplerConfig, batched  # noqa: E402
from sampling.counter_rng import Purpose  # noqa: E402
from sampling.g_test import FALSE_ALARM, chance_of  # noqa: E402
from schemas.profile import ExecutionProfile  # noqa: E402
from worker.calibration import Calibration  # noqa: E402
from worker.engine.checkup import PROMPT, TOKENS, TinyEngine, decisions, enumerate_completions  # noqa: E402
from worker.engine.completion import Completion  # noqa: E402
from worker.engine.static_cache import StaticCache  # noqa: E402

DEPTH = 2
PROFILE = ExecutionProfile(slots=64, depth=DEPTH, capacities=(128,))
CHECKS = ("sequences", "calibration", "surprise", "logprob_sum")


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def residual_dropped() -> Any:
    def corrections(p, drafts, tokens, accepted, rows):
        return p.sample(accepted, batched.uniform(rows.keys, rows.positions + accepted, Purpose.CORRECTION))

    return patched(batched, "_corrections", corrections)


def q_stated_too_high(factor: float) -> Any:
    honest = batched._acceptance

    def acceptance(p, drafts, tokens, uniforms):
        alphas = honest(p, drafts, tokens, uniforms)
        p_token = p.probability_of(tokens, np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape))
        places = np.zeros((len(tokens), 1), dtype=np.int64)
        q_token = np.concatenate([s.distribution.probability_of(tokens[:, i, None], places) for i, s in enumerate(drafts)], axis=1)
        return np.where(q_token > 0, np.minimum(1.0, p_token / np.maximum(factor * q_token, 1e-300)), alphas)

    return patched(batched, "_acceptance", acceptance)


def acceptance_at_most() -> Any:
    honest = batched._acceptance

    def acceptance(p, drafts, tokens, uniforms):
        alphas = honest(p, drafts, tokens, uniforms)
        return np.where(uniforms == alphas, np.nextafter(alphas, 2.0), alphas)  # u <= α is u < the next number above α

    return patched(batched, "_acceptance", acceptance)


def coin_is_the_drafts_own() -> Any:
    honest = batched.uniform

    def uniform(keys, positions, purpose):
        return honest(keys, positions, Purpose.DRAFT if purpose == Purpose.ACCEPT else purpose)

    return patched(batched, "uniform", uniform)


def coin_is_lenient(factor: float) -> Any:
    honest = batched.uniform

    def uniform(keys, positions, purpose):
        words = honest(keys, positions, purpose)
        return words * factor if purpose == Purpose.ACCEPT else words

    return patched(batched, "uniform", uniform)


def cache_keeps_rejected_drafts() -> Any:
    """The key and value of a rejected draft stay where its correction belongs."""
    honest = StaticCache.update_and_fetch

    def update_and_fetch(self, keys, values):
        verifying = self.keys is not None and keys.shape[2] == DEPTH + 1
        if not verifying:
            return honest(self, keys, values)
        rows, first = mx.arange(keys.shape[0]), self.cursor.offsets
        stale = mx.array(self.keys[rows, :, first]), mx.array(self.values[rows, :, first])
        honest(self, keys, values)
        self.keys[rows, :, first], self.values[rows, :, first] = stale
        window = self.cursor.window
        return self.keys[:, :, :window], self.values[:, :, :window]

    return patched(StaticCache, "update_and_fetch", update_and_fetch)


MUTANTS: dict[str, Callable[[], Any]] = {
    "none (the honest engine)": contextlib.nullcontext,
    "residual dropped: the correction is drawn from p": residual_dropped,
    "q mis-stated by 2%": lambda: q_stated_too_high(1.02),
    "q mis-stated by 20%": lambda: q_stated_too_high(1.2),
    "`<=` in the acceptance test": acceptance_at_most,
    "the draft's own random word judges it": coin_is_the_drafts_own,
    "the acceptance word is 2% too small": lambda: coin_is_lenient(0.98),
    "stale cache: a rejected draft's key and value stay": cache_keeps_rejected_drafts,
}


def first_failures(tiny: TinyEngine, completions: list[Completion], expected: dict[tuple[int, ...], float]) -> dict[str, int | None]:
    """For every check the completion tokens after which it fires."""
    spec = tiny.spec(SamplerConfig(), TOKENS, PROFILE)
    rows = [
        {"record_id": PROMPT, "prompt": PROMPT, "sample": c.request.sample, "bad_input": None, "token_ids": c.token_ids}
        for c in completions
    ]
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]} | {"bad_input": pa.nulls(len(rows), pa.string())})
    # A completion is scored once, however often it was drawn.
    distinct = {tuple(row["token_ids"]): index for index, row in enumerate(rows)}
    scores = tiny.engine(spec).score(spec, table.take(pa.array(list(distinct.values()))), lambda: None).to_pylist()
    score_of = dict(zip(distinct, scores, strict=True))
    cells = sorted(expected)
    probabilities = np.array([expected[cell] for cell in cells])
    found: dict[str, int | None] = dict.fromkeys(CHECKS)
    tokens = 0
    accepted, expected_accepted, variance, surprise, surprise_variance = 0, 0.0, 0.0, 0.0, 0.0
    seen: Counter[tuple[int, ...]] = Counter()
    for number, completion in enumerate(completions, 1):
        ids = tuple(completion.token_ids)
        tokens += len(ids)
        seen[ids] += 1
        accepted += sum(completion.acceptance.accepted_by_depth)
        expected_accepted += completion.acceptance.expected_accepted
        variance += completion.acceptance.accepted_variance
        surprise += score_of[ids]["surprise"]
        surprise_variance += score_of[ids]["surprise_variance"]
        fired = {
            "calibration": Calibration(accepted, expected_accepted, variance).broken,
            "surprise": number >= 100 and abs(surprise) > 5 * math.sqrt(surprise_variance),
            "logprob_sum": abs(sum(completion.logprobs) - math.fsum(score_of[ids]["logprobs"])) > 0.01 + 0.001 * len(ids),
        }
        if number % 250 == 0:
            counts = np.array([seen[cell] for cell in cells])
            fired["sequences"] = not set(seen) <= set(cells) or chance_of(counts, probabilities) < FALSE_ALARM
        for name, fires in fired.items():
            if fires and found[name] is None:
                found[name] = tokens
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16_000)
    samples = parser.parse_args().samples
    with tempfile.TemporaryDirectory() as folder:
        tiny = TinyEngine(Path(folder), vocab_size=6, hidden=16)
        spec = tiny.spec(SamplerConfig(), TOKENS, PROFILE)
        expected = enumerate_completions(tiny.engine(spec).trunk, SamplerConfig())
        print("| fault | decisions | " + " | ".join(CHECKS) + " |\n|---|---|" + "---:|" * len(CHECKS))
        for name, mutate in MUTANTS.items():
            with mutate():
                caught = "-" if decisions()[0] else "caught"
                completions = tiny.complete(spec, [PROMPT], samples)
            found = first_failures(tiny, completions, expected)
            print(
                f"| {name} | {caught} | " + " | ".join("-" if found[check] is None else f"{found[check]:,}" for check in CHECKS) + " |",
                flush=True,
            )
        total = sum(len(completion.token_ids) for completion in completions)
        print(f"\n{samples:,} completions, {total:,} tokens for each fault.")


if __name__ == "__main__":
    main()
