"""`tune`: what slots and depths are worth on this machine: tokens per second, acceptance and memory over a grid."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from producer.manifest_file import versions
from schemas.depth_trial import DepthTrial
from schemas.errors import EngineCrashedError, EngineError
from schemas.run_spec import RunSpec
from schemas.tables import blob_schema, table_to_bytes
from schemas.tuned_profile import TunedProfile
from schemas.wire import Json
from worker.engine.client import EngineProcess

ROUNDS = 2  # times that every slot is filled


@dataclass(frozen=True)
class Measurement:
    """One cell of the grid.

    Attributes:
        slots: B.
        depth: K.
        tokens_per_second: completion tokens per second of decoding, prefill and loading aside; 0 where it failed.
        rows_per_second: finished rows per second, prefill included.
        tokens_per_cycle: mean completion tokens per cycle.
        acceptance: accepted share of the drafts at depth 1, 2, …
        peak_bytes: the engine's peak memory in bytes.
        tokens: completion tokens.
        backend: the backend class that it ran on.
        problem: why the cell could not be measured, or None.
    """

    slots: int
    depth: int
    tokens_per_second: float = 0.0
    rows_per_second: float = 0.0
    tokens_per_cycle: float = 0.0
    acceptance: tuple[float, ...] = ()
    peak_bytes: int = 0
    tokens: int = 0
    backend: str = ""
    problem: str | None = None

    def to_json(self) -> dict[str, Json]:
        """The cell for programs."""
        return {**dataclasses.asdict(self), "acceptance": list(self.acceptance)}


def tune(
    spec: RunSpec,
    prompts: Sequence[str],
    slots: Sequence[int],
    depths: Sequence[int],
    on_cell: Callable[[Measurement], None],
    *,
    trust_remote_code: bool = False,
) -> list[Measurement]:
    """Measure every pair of slots and depth on the same prompts; the number of rows grows with the slots so that all of them are in use.

    Args:
        spec: a run's spec; its profile's slots and depth are replaced.
        prompts: used in turn.
        slots: values of B.
        depths: values of K.
        on_cell: receives each cell as it is measured.
        trust_remote_code: as in `EngineProcess`.
    """
    cells = []
    for depth in depths:
        # One engine per depth: every depth is another model to load anyway.
        engine = EngineProcess(trust_remote_code=trust_remote_code)
        try:
            for cell in _row(engine, spec, prompts, slots, depth):
                cells.append(cell)
                on_cell(cell)
        finally:
            engine.close()
    return cells


def best(cells: Sequence[Measurement]) -> Measurement | None:
    """The fastest cell by rows per second; the smaller one of two within 3%, because it needs less memory."""
    measured = [cell for cell in cells if cell.problem is None]
    if not measured:
        return None
    fastest = max(cell.rows_per_second for cell in measured)
    return min((cell for cell in measured if cell.rows_per_second >= 0.97 * fastest), key=lambda cell: (cell.slots, cell.depth))


def tuned_profile(spec: RunSpec, cells: Sequence[Measurement]) -> TunedProfile | None:
    """What `--depth auto` may use, or None: nothing drafts, or plain decoding was not among the candidates.

    Args:
        spec: as for `tune`.
        cells: what it measured.
    """
    measured = sorted((cell for cell in cells if cell.rows_per_second > 0), key=lambda cell: (cell.slots, cell.depth))
    fastest = best(measured)
    if spec.head is None or fastest is None or any(not _has_plain(measured, cell.slots) for cell in measured):
        return None
    return TunedProfile(
        model=spec.model.digest,
        head=spec.head.digest,
        dtype=spec.profile.dtype,
        backend=fastest.backend,
        specmill=versions()["specmill"],
        temperature=spec.sampler.temperature,
        top_p=spec.sampler.top_p,
        slots=fastest.slots,
        depth=fastest.depth,
        trials=tuple(_trial(cell) for cell in measured),
    )


def _has_plain(cells: Sequence[Measurement], slots: int) -> bool:
    return any(cell.slots == slots and cell.depth == 0 for cell in cells)


def _trial(cell: Measurement) -> DepthTrial:
    seconds = ROUNDS * cell.slots / cell.rows_per_second
    return DepthTrial(cell.depth, cell.slots, cell.tokens, cell.tokens / seconds, cell.tokens_per_cycle)


def _row(engine: EngineProcess, spec: RunSpec, prompts: Sequence[str], slots: Sequence[int], depth: int) -> Iterator[Measurement]:
    for count in slots:
        profile = dataclasses.replace(spec.profile, slots=count, depth=depth)
        try:
            yield _measure(engine, dataclasses.replace(spec, profile=profile), [prompts[i % len(prompts)] for i in range(ROUNDS * count)])
        except (EngineCrashedError, EngineError) as error:
            yield Measurement(count, depth, problem=str(error).partition("\n")[0])


def _measure(engine: EngineProcess, spec: RunSpec, prompts: list[str]) -> Measurement:
    rows = [{"row": i, "record_id": str(i), "prompt": prompt, "bad_input": None} for i, prompt in enumerate(prompts)]
    blob = table_to_bytes(pa.Table.from_pylist(rows, schema=blob_schema(prompt=True, messages=False, own=[])))
    engine.load(spec)
    outcome = engine.generate(spec, 0, blob, on_tally=lambda _: None, stopped=lambda: False)
    tally = outcome.tally
    decoding = outcome.draft_seconds + outcome.verify_seconds + outcome.commit_seconds
    pairs = zip(tally.accepted_by_depth, tally.drafted_by_depth, strict=True)
    return Measurement(
        slots=spec.profile.slots,
        depth=spec.profile.depth,
        tokens_per_second=tally.completion_tokens / decoding if decoding > 0 else 0.0,
        rows_per_second=tally.rows / (decoding + outcome.prefill_seconds) if decoding > 0 else 0.0,
        tokens_per_cycle=tally.completion_tokens / tally.cycles if tally.cycles else 0.0,
        acceptance=tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs),
        peak_bytes=outcome.peak_bytes,
        tokens=tally.completion_tokens,
        backend=outcome.backend.class_name or "",
    )
