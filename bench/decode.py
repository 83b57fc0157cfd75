"""Tokens per second of the engine against mlx-lm: same model, same prompt ids, same B, alternately in one process.

Run: python bench/decode.py PROMPTS.jsonl [--column 'turns[0]'] [--mtp HEAD] [--batch 1 8 16] [--depth 0 1] [--samplers sampled greedy]

The peers are `batch_generate`, and at B = 1 with a head `speculative_generate_step` too, whose draft model is `--draft-model` (the target
itself when not given: mlx-lm has no heads). Decode rates leave the prefill out on both sides (mlx-lm's own statistics; the engine's draft +
verify + commit); whole rates divide all new tokens by all wall time. Greedy or sampled, both sides stop at the model's end tokens; a
sampled peer draws other tokens, so rates are compared, never wall times.

`--categories` measures every category of the file by itself at B = 1, in Spec-Bench's own terms: mean accepted tokens (tokens per cycle)
and speed-up over decoding without drafts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measurement import Measure, Result, arguments, in_turns
from specs import bench_spec

from producer.column_path import ColumnPath
from sampling.counter_rng import row_key
from schemas.run_spec import RunSpec
from schemas.sampler import SamplerConfig
from worker.engine import blas, model_store

SAMPLERS = {"sampled": SamplerConfig(temperature=0.7, top_p=0.95), "greedy": SamplerConfig(temperature=0.0)}
GOALS = {
    "sampled": {1: "1.6, floor 1.3", 4: "2.0, floor 1.4", 8: "2.0, floor 1.5", 16: "1.7, floor 1.5", 32: "1.4, floor 1.3"},
    "greedy": {1: "1.3, floor 1.0", 4: "1.5, floor 1.0", 8: "1.5, floor 1.0", 16: "1.2, floor 1.0", 32: "1.05, floor 1.0"},
}
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


@dataclass(frozen=True)
class Decoded:
    """One side's result of one round.

    Attributes:
        tokens: new ones.
        decode: tokens per second without prefill.
        whole: tokens per second with everything.
        cycles: of the batch; 0 for a peer.
        row_cycles: summed over rows.
        decode_seconds: draft, verify and commit.
    """

    tokens: int
    decode: float
    whole: float
    cycles: int = 0
    row_cycles: int = 0
    decode_seconds: float = 0.0


def prompts_of(path: Path, column: str, count: int) -> list[tuple[str, str]]:
    """Prompts and their categories, of the records that have the column.

    The mix of categories is even where there are some; those of MT-bench are one, as in Spec-Bench.
    """
    groups: dict[str, list[str]] = {}
    wanted = ColumnPath.parse(column)
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line) if line.strip() else {}
        if wanted.column in record:
            category = str(record.get("category", ""))
            name = "multi-turn conversation" if category in MT_BENCH else category.replace("_", " ")
            groups.setdefault(name, []).append(str(wanted.of(record)))
    shares = {name: -(-count // len(groups)) for name in groups}
    # Evenly spaced within a category, too: a file may be sorted.
    spaced = {name: prompts[:: max(1, len(prompts) // shares[name])][: shares[name]] for name, prompts in groups.items()}
    mixed = [(prompts[at], name) for at in range(max(shares.values())) for name, prompts in spaced.items() if at < len(prompts)]
    return mixed[:count]


def run_engine(spec: RunSpec, engine: Any, prompts: Sequence[str]) -> Decoded:
    from worker.engine.engine import Timings

    timings, cycles = Timings(), 0

    def count(_: object) -> None:
        nonlocal cycles
        cycles += 1

    started = time.perf_counter()
    completions = engine.complete(spec, _requests(prompts), timings, count)
    wall = time.perf_counter() - started
    assert all(completion.error is None for completion in completions)
    tokens = sum(len(completion.token_ids) for completion in completions)
    row_cycles = sum(completion.acceptance.cycles for completion in completions)
    seconds = timings.draft + timings.verify + timings.commit
    return Decoded(tokens, tokens / seconds, tokens / wall, cycles, row_cycles, seconds)


def run_peer(model: Any, tokenizer: Any, ids: list[list[int]], slots: int, spec: RunSpec) -> Decoded:
    from mlx_lm.generate import batch_generate
    from mlx_lm.sample_utils import make_sampler

    sampler = make_sampler(temp=spec.sampler.temperature, top_p=spec.sampler.top_p)
    # Its default of 2,048 would score every token of a long prompt against all others, those behind it included.
    sizes = {"completion_batch_size": slots, "prefill_batch_size": min(slots, 8), "prefill_step_size": spec.profile.prefill_chunk}
    started = time.perf_counter()
    stats = batch_generate(model, tokenizer, ids, max_tokens=spec.max_tokens, sampler=sampler, **sizes).stats
    return Decoded(stats.generation_tokens, stats.generation_tps, stats.generation_tokens / (time.perf_counter() - started))


def run_speculative_peer(model: Any, draft: Any, tokenizer: Any, ids: list[list[int]], spec: RunSpec, drafts: int) -> Decoded:
    """mlx-lm's own speculation, one prompt after the other; its first token ends the prefill."""
    import mlx.core as mx
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.sample_utils import make_sampler

    sampler = make_sampler(temp=spec.sampler.temperature, top_p=spec.sampler.top_p)
    tokens, decoding, started = 0, 0.0, time.perf_counter()
    for prompt in ids:
        first = 0.0
        steps = speculative_generate_step(
            mx.array(prompt), model, draft, num_draft_tokens=drafts, max_tokens=spec.max_tokens, sampler=sampler
        )
        for token, *_ in steps:
            first = first or time.perf_counter()
            tokens += 1
            if int(token) in tokenizer.eos_token_ids:
                break
        decoding += time.perf_counter() - first
    return Decoded(tokens, tokens / decoding, tokens / (time.perf_counter() - started))


def _requests(prompts: Sequence[str]) -> list[Any]:
    from worker.engine.completion import Request

    return [Request(i, 0, row_key(0, str(i), 0), prompt, None, None) for i, prompt in enumerate(prompts)]


@dataclass(frozen=True)
class Limits:
    """The machine's limits, and what a cycle asks of them.

    Attributes:
        bandwidth: bytes read per second.
        peak: floating point operations per second.
        target: parameters that a pass of the target reads.
        head: parameters that a draft reads.
    """

    bandwidth: float
    peak: float
    target: int
    head: int

    @classmethod
    def of(cls, engine: Any) -> "Limits":
        """Measured now, for a float32 engine."""
        from machine_limits import gemm_peak, read_bandwidth
        from mlx.utils import tree_flatten

        def size(tree: Any) -> int:
            return sum(value.size for _, value in tree_flatten(tree))

        target = size(engine.trunk._text_model.parameters())
        head = 0
        if engine._head is not None:
            rows = engine._head._output_rows
            head = size(engine._head.parameters()) + (rows.size if rows is not None else engine.trunk.vocab_size * engine.trunk.width)
        return cls(read_bandwidth(), gemm_peak(), target, head)

    def bandwidth_share(self, run: Decoded, depth: int) -> float:
        """Bytes of weights that all cycles must read ÷ what memory gives in their time, percent."""
        return 100 * 4 * (self.target + depth * self.head) * run.cycles / run.decode_seconds / self.bandwidth

    def flop_share(self, run: Decoded, depth: int) -> float:
        """Multiplications and additions that the rows need ÷ what the machine could do in that time, percent."""
        work = 2.0 * ((depth + 1) * self.target + depth * self.head) * run.row_cycles
        return 100 * work / run.decode_seconds / self.peak


class Bench:
    """The model on both sides."""

    result: Result  # of what is measured now

    def __init__(self, args: argparse.Namespace) -> None:
        from mlx_lm.utils import load

        self.args = args
        self.model, self.tokenizer = load_float32(load, model_store.resolve_model(args.model))
        self.draft = load_float32(load, model_store.resolve_model(args.draft_model))[0] if args.draft_model else self.model
        self._engines: dict[tuple[int, int], Any] = {}

    def spec(self, sampler: str, slots: int, depth: int) -> RunSpec:
        shape = {"slots": slots, "depth": depth, "max_tokens": self.args.max_tokens, "records": self.args.prompts}
        return bench_spec(self.args.model, self.args.mtp, sampler=SAMPLERS[sampler], **shape)

    def engine(self, spec: RunSpec) -> Any:
        from worker.engine.mtp_engine import MTPEngine

        key = (spec.profile.slots, spec.profile.depth)
        if key not in self._engines:
            self._engines = {of: engine for of, engine in self._engines.items() if of[0] == key[0]}
            self._engines[key] = MTPEngine.load(spec)
        return self._engines[key]

    def ids(self, prompts: Sequence[str]) -> list[list[int]]:
        from worker.engine.encoding import encode_prompt

        return [encode_prompt(request, self.tokenizer, raw=False) for request in _requests(prompts)]

    def compare(self, sampler: str, slots: int, depths: Sequence[int], prompts: Sequence[str]) -> None:
        """One batch size, every depth: decode and whole rates beside `batch_generate`, and how near the machine's limit."""
        specs = [self.spec(sampler, slots, depth) for depth in depths]
        ids = self.ids(prompts)
        runs: dict[int, list[Decoded]] = {spec.profile.depth: [] for spec in specs}
        peers: list[Decoded] = []

        def ours(spec: RunSpec) -> float:
            runs[spec.profile.depth].append(run_engine(spec, self.engine(spec), prompts))
            return runs[spec.profile.depth][-1].decode

        def theirs() -> float:
            peers.append(run_peer(self.model, self.tokenizer, ids, slots, specs[0]))
            return peers[-1].decode

        in_turns(self.args.rounds, *(partial(ours, spec) for spec in specs), theirs)
        for spec in specs:
            self.report(sampler, spec, runs[spec.profile.depth], peers)

    def report(self, sampler: str, spec: RunSpec, runs: Sequence[Decoded], peers: Sequence[Decoded]) -> None:
        """The rounds of one depth."""
        slots, depth = spec.profile.slots, spec.profile.depth
        cell = f"B = {slots}, {sampler}, K = {depth}"
        goal = f"ratio {GOALS[sampler][slots]}" if slots in GOALS[sampler] else ""
        theirs = tuple(peer.decode for peer in peers), tuple(peer.whole for peer in peers)
        self.result.add(Measure(f"{cell}: decode", "tok/s", tuple(run.decode for run in runs), "batch_generate", theirs[0], goal))
        self.result.add(Measure(f"{cell}: with prefill", "tok/s", tuple(run.whole for run in runs), "batch_generate", theirs[1]))
        self.result.add(Measure(f"{cell}: tokens per cycle", "", tuple(run.tokens / run.row_cycles for run in runs)))
        limits = Limits.of(self.engine(spec))
        if slots == 1:
            shares = tuple(limits.bandwidth_share(run, depth) for run in runs)
            what = f"of {limits.bandwidth / 1e9:.1f} GB/s"
            self.result.add(Measure(f"{cell}: weights read, share {what}", "%", shares, goal="≥ 70 %"))
        if slots == max(self.args.batch):
            shares = tuple(limits.flop_share(run, depth) for run in runs)
            what = f"of {limits.peak / 1e9:.0f} GFLOP/s"
            self.result.add(Measure(f"{cell}: arithmetic, share {what}", "%", shares, goal="≥ 50 %" if slots == 32 else ""))

    def compare_speculation(self, sampler: str, depth: int, prompts: Sequence[str]) -> None:
        """B = 1 beside `speculative_generate_step`."""
        spec = self.spec(sampler, 1, depth)
        engine, ids = self.engine(spec), self.ids(prompts)
        ours, theirs = in_turns(
            self.args.rounds,
            lambda: run_engine(spec, engine, prompts).whole,
            lambda: run_speculative_peer(self.model, self.draft, self.tokenizer, ids, spec, depth).whole,
        )
        draft = self.args.draft_model or "the target itself as draft model"
        what = f"B = 1, {sampler}, K = {depth}: with prefill"
        self.result.add(Measure(what, "tok/s", ours, f"speculative_generate_step, {draft}", theirs))

    def compare_categories(self, sampler: str, depth: int, prompts: list[tuple[str, str]]) -> None:
        """B = 1, category by category."""
        spec = self.spec(sampler, 1, depth)
        engine = self.engine(spec)
        for category in dict.fromkeys(name for _, name in prompts):
            mine = [prompt for prompt, name in prompts if name == category]
            ids = self.ids(mine)
            runs: list[Decoded] = []

            def ours(mine: list[str] = mine, runs: list[Decoded] = runs) -> float:
                runs.append(run_engine(spec, engine, mine))
                return runs[-1].decode

            def theirs(ids: list[list[int]] = ids) -> float:
                return run_peer(self.model, self.tokenizer, ids, 1, spec).decode

            values = in_turns(self.args.rounds, ours, theirs)
            accepted = statistics.median(run.tokens / run.row_cycles for run in runs)
            what = f"{category or 'all'}, {sampler}, K = {spec.profile.depth}: speed-up; mean accepted tokens {accepted:.2f}"
            self.result.add(Measure(what, "tok/s", values[0], "batch_generate, B = 1", values[1]))


def load_float32(load: Any, folder: Path) -> tuple[Any, Any]:
    import mlx.core as mx

    model, tokenizer = load(str(folder))[:2]
    model.set_dtype(mx.float32)
    return model, tokenizer


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--column", default="turns[0]")
    parser.add_argument("--model", default=model_store.SMOLLM2)
    parser.add_argument("--mtp")
    parser.add_argument("--draft-model", help="for mlx-lm's own speculation")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--depth", type=int, nargs="+")
    parser.add_argument("--refills", type=int, default=4, help="prompts per slot, where there are so many; at least 8 prompts")
    parser.add_argument("--speculations", type=int, default=8, help="prompts for mlx-lm's own speculation, which is slow")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--categories", action="store_true")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.short else 3)
    args.prompts = args.prompts or (8 if args.short else 64)
    args.max_tokens = args.max_tokens or (16 if args.short else 128)
    args.batch = args.batch or ([1, 8] if args.short else [1, 4, 8, 16, 32])
    args.depth = args.depth or ([0, 1] if args.mtp else [0])
    fast = blas.prepare()
    head = f"head {Path(args.mtp).name}" if args.mtp else "no head"
    how = (
        f"{args.model}, float32 on {fast or 'the reference BLAS'}, {head}; {args.prompts} prompts of {args.file.name}, an even mix of its "
        f"categories, at most {args.max_tokens} new tokens. Sampled is T 0.7, top-p 0.95."
    )
    bench = Bench(args)
    mixed = prompts_of(args.file, args.column, args.prompts)
    for slots in args.batch:
        bench.result = Result(f"decode-{slots:02}", f"Decoding, B = {slots}", how)
        few = [prompt for prompt, _ in mixed][: max(8, args.refills * slots)]
        for sampler in args.samplers:
            bench.compare(sampler, slots, args.depth, few)
            if slots == 1 and args.mtp and max(args.depth):
                bench.compare_speculation(sampler, max(args.depth), few[: args.speculations])
        bench.result.write(args.results)
    if args.categories:
        bench.result = Result("decode-categories", "Decoding by category, B = 1", how)
        for sampler in args.samplers:
            bench.compare_categories(sampler, max(args.depth), mixed)
        bench.result.write(args.results)


if __name__ == "__main__":
    main()
