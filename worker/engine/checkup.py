"""The part of `specmill doctor` that needs mlx: exactness, randomness, invariance and threads, on this machine.

Run as a process of its own (`python -m worker.engine.checkup`), so that a library that crashes is a finding and not the end of the checkup.
It prints one JSON object per line: first the backend, then every check as it ends.
"""

import json
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from sampling import (
    PositionRandom,
    Purpose,
    SamplerConfig,
    distribution_from_logits,
    row_key,
    sample_from_distribution,
    speculative_output_marginal,
    threefry2x32,
    verify_one_token,
)
from sampling.batched import BatchedSampler, DraftStep
from sampling.g_test import FALSE_ALARM, chance_of
from sampling.rows import RowBatch
from sampling.threefry_mlx import threefry2x32 as threefry2x32_on_device
from schemas.certificate import Check
from schemas.profile import ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from worker.engine import model_store
from worker.engine.completion import Completion, Request
from worker.engine.engine import Timings
from worker.engine.mtp_engine import MTPEngine
from worker.engine.tiny_model import make_tiny_head, make_tiny_llama
from worker.engine.trunk import Trunk

# Random123's published answers for Threefry-2x32-20: (counter, key) → words.
KNOWN_ANSWERS = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
)
PROMPT, TOKENS, SAMPLES, END = "e t a", 3, 2000, 1
SEQUENCES = {
    "T=1": SamplerConfig(),
    "T=0.8, top-p 0.9, top-k 4": SamplerConfig(temperature=0.8, top_p=0.9, top_k=4),
    "penalties": SamplerConfig(presence_penalty=1.0, frequency_penalty=0.7),
    "greedy": SamplerConfig(temperature=0.0),
}

Finding = tuple[bool, str]


def oracle() -> Finding:
    """The marginal of one speculative step equals the target, for random targets and drafts."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for trial in range(300):
        config = SamplerConfig(temperature=float(rng.uniform(0.2, 1.5)), top_p=float(rng.uniform(0.3, 1.0)), top_k=int(rng.integers(0, 20)))
        p, q = (distribution_from_logits(rng.normal(0, 3, 40), config) for _ in range(2))
        worst = max(worst, float(np.abs(speculative_output_marginal(p, q) - p).max()), abs(float(p.sum()) - 1.0) if trial else 0.0)
    return worst < 1e-12, f"300 random pairs, worst error {worst:.1e}"


def known_answers() -> Finding:
    """Threefry gives the published words, and the same on the device as on the host."""
    for counter, key, words in KNOWN_ANSWERS:
        host = tuple(int(word) for word in threefry2x32(key, counter))
        if host != words:
            return False, f"host: counter {counter}, key {key} gives {host}, published {words}"
    key_words = np.arange(4096, dtype=np.uint32) * np.uint32(2654435761)
    counters = np.arange(4096, dtype=np.uint32)
    on_host = threefry2x32((key_words, key_words ^ np.uint32(7)), (counters, np.uint32(Purpose.ACCEPT)))
    arrays = mx.array(key_words), mx.array(key_words ^ np.uint32(7))
    on_device = threefry2x32_on_device(arrays, (mx.array(counters), mx.array(int(Purpose.ACCEPT), mx.uint32)))
    same = all(np.array_equal(mine, np.array(theirs)) for mine, theirs in zip(on_host, on_device, strict=True))
    return same, "2 published answers, 4,096 words equal on host and device" if same else "the device's words are not the host's"


def draws() -> Finding:
    """Real draws of the batched sampler follow the reference distribution."""
    rows, vocab = 20_000, 50
    logits = np.random.default_rng(1).normal(0, 2, vocab).astype(np.float32)
    batch = RowBatch.of([row_key(1, "draws", sample) for sample in range(rows)], np.zeros(rows, dtype=np.int64))
    chances = []
    for config in (SamplerConfig(), SamplerConfig(temperature=0.7, top_p=0.9), SamplerConfig(top_k=5)):
        tokens = BatchedSampler(config, vocab).draft(mx.broadcast_to(mx.array(logits), (rows, vocab)), batch).tokens
        chances.append(chance_of(np.bincount(tokens, minlength=vocab), distribution_from_logits(logits, config)))
    return min(chances) > FALSE_ALARM, f"G-tests of {rows:,} draws: chances {', '.join(f'{chance:.2g}' for chance in chances)}"


def decisions() -> Finding:
    """Every draft, verdict and correction of the batched sampler is the one that the float64 reference takes with the same words."""
    rows, depth, vocab = 128, 2, 200
    rng = np.random.default_rng(3)
    keys = [row_key(2, "decisions", sample) for sample in range(rows)]
    batch = RowBatch.of(keys, np.zeros(rows, dtype=np.int64))
    judged, worst = 0, 0.0
    for config in (SamplerConfig(), SamplerConfig(temperature=0.7, top_p=0.9), SamplerConfig(temperature=1.2, top_k=8)):
        target = rng.normal(0, 2, (rows, depth + 1, vocab)).astype(np.float32)
        draft = (target + rng.normal(0, 1, target.shape)).astype(np.float32)
        sampler = BatchedSampler(config, vocab)
        steps: list[DraftStep] = []
        for place in range(depth):
            steps.append(sampler.draft(mx.array(draft[:, place]), batch, steps))
        block = sampler.verify(mx.array(target), batch, steps)
        for row, key in enumerate(keys):
            for place in range(depth + 1):
                p = distribution_from_logits(target[row, place], config)
                if place == depth:
                    expected, accepted = sample_from_distribution(p, PositionRandom(key, place, (Purpose.CORRECTION,))), False
                else:
                    q = distribution_from_logits(draft[row, place], config)
                    token = sample_from_distribution(q, PositionRandom(key, place, (Purpose.DRAFT,)))
                    decision = verify_one_token(p, q, token, PositionRandom(key, place))
                    expected, accepted = decision.token_id, decision.accepted
                    worst = max(worst, abs(decision.accept_probability - float(block.accept_probabilities[row, place])))
                    judged += 1
                if int(block.tokens[row, place]) != expected or accepted != (place < block.accepted[row]):
                    name = f"T={config.temperature:g}, top-p {config.top_p:g}, top-k {config.top_k}"
                    return False, f"{name}: row {row}, place {place}: {block.tokens[row, place]}, and the reference says {expected}"
                if not accepted:
                    break
    return worst < 1e-4, f"{judged:,} drafts judged as the float64 reference judges them, α within {worst:.0e}"


class TinyEngine:
    """A tiny random model with a head, and specs over it."""

    def __init__(self, folder: Path, vocab_size: int, hidden: int) -> None:
        trunk = make_tiny_llama(folder / "trunk", vocab_size=vocab_size, hidden=hidden, layers=2, heads=4, kv_heads=2, seed=5)
        self._head = make_tiny_head(folder / "mtp.safetensors", trunk, seed=6)
        self._trunk = trunk
        self._loaded: dict[ExecutionProfile, MTPEngine] = {}

    def spec(self, sampler: SamplerConfig, max_tokens: int, profile: ExecutionProfile) -> RunSpec:
        """A spec for raw prompts."""
        files, head_files = model_store.digest_folder(self._trunk), {self._head.name: model_store.digest_file(self._head)}
        return RunSpec(
            run_id="checkup",
            model=ModelRef(str(self._trunk), model_store.combined_digest(files), files),
            head=ModelRef(str(self._head), model_store.combined_digest(head_files), head_files),
            sampler=sampler,
            max_tokens=max_tokens,
            stop=(),
            samples=1,
            seed=0,
            coupling="rejection",
            profile=profile,
            raw=True,
            logprobs=False,
            shard_size=64,
            records=64,
            prompts_digest="",
        )

    def engine(self, spec: RunSpec) -> MTPEngine:
        """The engine of a spec, loaded once per profile."""
        if spec.profile not in self._loaded:
            self._loaded[spec.profile] = MTPEngine.load(spec)
        return self._loaded[spec.profile]

    def complete(self, spec: RunSpec, prompts: list[str], samples: int = 1) -> list[Completion]:
        """Completions of prompts; a row's key depends on its prompt and sample alone."""
        requests = [
            Request(index=index, sample=sample, key=row_key(0, prompt, sample), prompt=prompt, messages=None, bad_input=None)
            for index, prompt in enumerate(prompts)
            for sample in range(samples)
        ]
        return self.engine(spec).complete(spec, requests, Timings(), lambda _: None)


def enumerate_completions(trunk: Trunk, config: SamplerConfig) -> dict[tuple[int, ...], float]:
    """Probability of every completion of PROMPT of up to TOKENS tokens, by plain autoregressive passes and the float64 reference."""
    prompt = [int(token) for token in trunk.tokenizer.encode(PROMPT)]
    finished: dict[tuple[int, ...], float] = {}
    unfinished: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, probability in unfinished.items():
            hidden = trunk.read([*prompt, *prefix], chunk=512)[-1:]
            logits = np.array(trunk.logits(trunk.norm(hidden))[0].astype(mx.float32))
            for token, p in enumerate(distribution_from_logits(logits, config, Counter(prefix))):
                if p > 0:
                    (finished if token == END or len(prefix) == TOKENS - 1 else longer)[*prefix, token] = probability * float(p)
        unfinished = longer
    return finished


def sequences(tiny: TinyEngine, depth: int = 2) -> Finding:
    """Whole completions of the real engine follow exact enumeration, and its acceptance is calibrated."""
    chances: dict[str, float] = {}
    deviation = variance = 0.0
    for name, config in SEQUENCES.items():
        profile = ExecutionProfile(slots=64, depth=depth, capacities=(128,))
        spec = tiny.spec(config, TOKENS, profile)
        expected = enumerate_completions(tiny.engine(spec).trunk, config)
        completions = tiny.complete(spec, [PROMPT], SAMPLES)
        seen = Counter(tuple(completion.token_ids) for completion in completions)
        if not set(seen) <= set(expected):
            return False, f"{name}: completion {sorted(set(seen) - set(expected))[0]} has probability 0"
        cells = sorted(expected)
        counts = np.array([seen[cell] for cell in cells], dtype=np.int64)
        chances[name] = chance_of(counts, np.array([expected[cell] for cell in cells]))
        for completion in completions:
            acceptance = completion.acceptance
            deviation += sum(acceptance.accepted_by_depth) - acceptance.expected_accepted
            variance += acceptance.accepted_variance
    z = deviation / math.sqrt(variance) if variance else 0.0
    detail = ", ".join(f"{name} {chance:.2g}" for name, chance in chances.items())
    return min(chances.values()) > FALSE_ALARM and abs(z) < 5, f"chances by G-test: {detail}; calibration z = {z:+.2f}"


def _logits(trunk: Trunk, ids: list[list[int]], lengths: list[int], *, capacity: int, window: int) -> mx.array:
    """Logits [B, T, V] of B texts, read in passes of the given lengths into caches of one capacity."""
    from worker.engine.static_cache import Cursor

    caches = trunk.make_caches(capacity)
    tokens = mx.array(ids, mx.int32)
    outputs, start = [], 0
    for length in lengths:
        cursor = Cursor(mx.full((len(ids),), start, dtype=mx.int32), length, window)
        outputs.append(trunk.logits(trunk.norm(trunk.forward(tokens[:, start : start + length], caches, cursor))))
        for cache in caches:
            cache.commit(mx.full((len(ids),), length, dtype=mx.int32))
        mx.eval(outputs[-1])
        start += length
    return mx.concatenate(outputs, axis=1)


def shapes(trunk: Trunk, *, promised: bool) -> Finding:
    """Which batch sizes, depths and capacities give one text the bits that it has alone, token by token."""
    rng = np.random.default_rng(2)
    text, others = ([int(token) for token in row] for row in rng.integers(3, trunk.vocab_size, (2, 24)))
    prefix, tail = 16, 8
    alone = _logits(trunk, [text], [prefix] + [1] * tail, capacity=64, window=64)

    def agrees(batch: int, steps: list[int], capacity: int, window: int, slot: int = 0) -> bool:
        rows = [others] * batch
        rows[slot] = text
        return bool(mx.all(_logits(trunk, rows, [prefix, *steps], capacity=capacity, window=window)[slot] == alone[0]).item())

    singles = [1] * tail
    tables = {
        "batch sizes": {str(batch): agrees(batch, singles, 64, 64) for batch in (1, 2, 4, 8, 16, 32)},
        "slots of 8": {str(slot): agrees(8, singles, 64, 64, slot) for slot in (0, 3, 7)},
        "depths": {str(k): agrees(1, [k + 1] * (tail // (k + 1)) + [1] * (tail % (k + 1)), 64, 64) for k in (1, 2, 3, 5, 7)},
        "capacities": {str(capacity): agrees(1, singles, capacity, capacity) for capacity in (128, 512, 2048)},
        "windows of 2048": {str(window): agrees(1, singles, 2048, window) for window in (64, 256)},
    }
    lines = [
        f"{name} {' '.join(which for which, same in table.items() if same) or 'none'}"
        + (f" (not {' '.join(which for which, same in table.items() if not same)})" if not all(table.values()) else "")
        for name, table in tables.items()
    ]
    everything = all(same for table in tables.values() for same in table.values())
    return everything or not promised, f"{'; '.join(lines)} {'agree with a text alone' if everything else 'agree'}"


def company(tiny: TinyEngine) -> Finding:
    """Rows are the same with other neighbours, in another order, and after refilling slots, at the same shapes."""
    prompts = ["Tell me.", "2 + 2 = ?", "why?", "no", "List three.", "a b c"]
    profile = ExecutionProfile(slots=3, depth=2, capacities=(128,))
    spec = tiny.spec(SamplerConfig(temperature=0.9, top_p=0.9), 12, profile)

    def rows(chosen: list[str]) -> dict[str, tuple[object, ...]]:
        made = tiny.complete(spec, chosen)
        return {prompt: (row.token_ids, row.logprobs, row.acceptance.column()) for prompt, row in zip(chosen, made, strict=True)}

    base = rows(prompts)
    found = {
        "order": rows(prompts[::-1]) == base,
        "neighbours": rows([prompts[0], "other", "others"])[prompts[0]] == base[prompts[0]],
        "slot": rows(["x", "y", prompts[0]])[prompts[0]] == base[prompts[0]],
        "refill": rows([prompts[3]])[prompts[3]] == base[prompts[3]],
    }
    bad = [name for name, same in found.items() if not same]
    return not bad, f"{', '.join(found)} change no row" if not bad else f"a row changes with its {', '.join(bad)}"


def threads(tiny: TinyEngine) -> Finding:
    """A model that is loaded and used in another thread gives the same rows."""
    profile = ExecutionProfile(slots=2, depth=1, capacities=(128,))
    spec = tiny.spec(SamplerConfig(), 8, profile)
    here = [row.token_ids for row in tiny.complete(spec, ["one", "two"])]
    there: list[list[int]] = []

    def work() -> None:
        engine = MTPEngine.load(spec)
        requests = [Request(i, 0, row_key(0, prompt, 0), prompt, None, None) for i, prompt in enumerate(["one", "two"])]
        there.extend(row.token_ids for row in engine.complete(spec, requests, Timings(), lambda _: None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return there == here, "equal rows from two threads" if there == here else "a second thread failed or gave other rows"


def main() -> None:
    """Run every check and print it as it ends."""
    with tempfile.TemporaryDirectory() as folder:
        small = TinyEngine(Path(folder) / "small", vocab_size=6, hidden=16)
        large = TinyEngine(Path(folder) / "large", vocab_size=2000, hidden=256)
        spec = large.spec(SamplerConfig(), 8, ExecutionProfile(slots=16, depth=3, capacities=(128,)))
        engine = large.engine(spec)
        print(json.dumps(engine.backend.encode()), flush=True)
        plan: list[tuple[str, Callable[[], Finding], str]] = [
            ("oracle", oracle, "the sampling arithmetic is wrong here: no row can be trusted"),
            ("random words", known_answers, "seeds give other draws than elsewhere: rows cannot be made again"),
            ("decisions", decisions, "drafts are judged by other numbers than those they were drawn from: no row can be trusted"),
            ("draws", draws, "tokens are not drawn from their distribution: no row can be trusted"),
            ("sequences", lambda: sequences(small), "speculation changes what is generated: no row can be trusted"),
            ("company", lambda: company(large), "a row depends on what else runs: verify by --teacher-forced only"),
            (
                "shapes",
                lambda: shapes(engine.trunk, promised=engine.backend.row_invariant),
                "rows depend on slots, depth or capacity although the start-up probe says no: do not change the profile between runs",
            ),
            ("threads", lambda: threads(large), "the engine may only be used from the thread that started it"),
        ]
        for name, work, meaning in plan:
            print(json.dumps(run(name, work, meaning).encode()), flush=True)


def run(name: str, work: Callable[[], Finding], meaning: str) -> Check:
    """One check; whatever it raises is its finding."""
    started = time.perf_counter()
    try:
        passed, detail = work()
    except Exception as error:  # a checkup reports what breaks, of whatever kind
        passed, detail = False, f"{type(error).__name__}: {error}"
    return replace(Check(name, passed, detail, meaning), seconds=time.perf_counter() - started)


if __name__ == "__main__":
    main()
