"""`--depth auto`: what `specmill tune` found on this machine, else what each depth is worth with the run's own first prompts; frozen.

Peers show why: with many rows side by side a draft can cost more than it saves, so plain decoding is always among the candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from producer.tuned_profile_file import find_tuned
from schemas.depth_trial import DepthTrial
from schemas.errors import EngineError
from schemas.row_sampling import COLUMN as SAMPLING_COLUMN
from schemas.run_spec import RunSpec
from schemas.tables import table_from_bytes, table_to_bytes
from schemas.tuned_profile import TunedProfile
from worker.engine.client import EngineProcess, ShardOutcome

CANDIDATES = (0, 1, 2, 3)
TRIAL_TOKENS = 32  # longest completion of a trial; acceptance hardly depends on the place in a text
ROUNDS = 2  # the best counts: what else runs on the machine only ever slows a round down


def choose_depth(
    spec: RunSpec, blob: bytes, note: Callable[[str], None], *, slots_given: bool, trust_remote_code: bool = False
) -> tuple[RunSpec, list[DepthTrial]]:
    """The run with the fastest depth here, and what was measured.

    Args:
        spec: the run, with a drafter; its depth is ignored.
        blob: the first shard, Arrow IPC.
        note: receives a line per step.
        slots_given: its slots stay; otherwise a tuned profile decides them too.
        trust_remote_code: as in `EngineProcess`.

    Raises:
        EngineError, EngineCrashedError, ModelError, HeadError: as `measure_depths`.
    """
    tuned = _tuned(spec, note)
    slots = spec.profile.slots if tuned is None or slots_given else tuned.slots
    trials = list(tuned.at(slots)) if tuned is not None else []
    if tuned is not None and trials:
        note(f"`specmill tune` has measured {slots} slots here, at temperature {tuned.temperature:g} and top-p {tuned.top_p:g}")
        depth = tuned.depth if slots == tuned.slots else best_depth(trials)
    else:
        if tuned is not None:
            note(f"`specmill tune` has not measured {slots} slots")
        trials = measure_depths(spec, blob, note, trust_remote_code=trust_remote_code)
        depth = best_depth(trials)
    note(f"depth {depth} is the fastest here with {slots} slots and stays for the whole run")
    return replace(spec, profile=replace(spec.profile, slots=slots, depth=depth)), trials


def _tuned(spec: RunSpec, note: Callable[[str], None]) -> TunedProfile | None:
    process = EngineProcess()
    try:
        return find_tuned(spec, process.backend_class(spec), note)
    finally:
        process.close()


def measure_depths(spec: RunSpec, blob: bytes, note: Callable[[str], None], *, trust_remote_code: bool = False) -> list[DepthTrial]:
    """Complete the first records of a shard at every depth.

    Args:
        spec: the run, with a drafter; its depth is ignored.
        blob: the first shard, Arrow IPC.
        note: receives a line per trial.
        trust_remote_code: as in `EngineProcess`.

    Returns:
        One trial per depth, in the order of `CANDIDATES`.

    Raises:
        EngineError: not one of the records could be completed.
        EngineCrashedError, ModelError, HeadError: as from any shard.
    """
    records = table_from_bytes(blob).slice(0, 2 * spec.profile.slots)
    records = records.drop_columns([name for name in (SAMPLING_COLUMN,) if name in records.column_names])  # a trial is short in every row
    process = EngineProcess(trust_remote_code=trust_remote_code)
    trials = []
    try:
        for depth in CANDIDATES:
            note(f"measuring depth {depth} on {records.num_rows} prompts")
            trial = replace(
                spec, samples=1, max_tokens=min(spec.max_tokens, TRIAL_TOKENS), profile=replace(spec.profile, depth=depth), logprobs=False
            )
            outcomes = [
                process.generate(trial, 0, table_to_bytes(records), on_tally=lambda _: None, stopped=lambda: False) for _ in range(ROUNDS)
            ]
            trials.append(_trial(trial, outcomes))
            note(f"depth {depth}: {trials[-1].tokens_per_second:.1f} tok/s, {trials[-1].tokens_per_cycle:.2f} tokens per cycle")
    finally:
        process.close()
    return trials


def best_depth(trials: Sequence[DepthTrial]) -> int:
    """The depth with the most tokens per second; of equals the smallest."""
    return max(trials, key=lambda trial: (trial.tokens_per_second, -trial.depth)).depth


def _trial(spec: RunSpec, outcomes: Sequence[ShardOutcome]) -> DepthTrial:
    tally = outcomes[0].tally
    if tally.completion_tokens == 0:
        raise EngineError(
            f"depth {spec.profile.depth} cannot be measured: all {tally.rows} prompts of the trial failed; give --depth a number"
        )
    seconds = min(o.prefill_seconds + o.draft_seconds + o.verify_seconds + o.commit_seconds for o in outcomes)
    return DepthTrial(
        depth=spec.profile.depth,
        slots=spec.profile.slots,
        tokens=tally.completion_tokens,
        tokens_per_second=tally.completion_tokens / max(seconds, 1e-9),
        tokens_per_cycle=tally.completion_tokens / max(tally.cycles, 1),
    )
