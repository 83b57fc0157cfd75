"""`verify`: does a dataset hold what its manifest claims? Files first, then the environment, then rows, one way or the other.

Rows are regenerated where this machine is of the backend class that made them, and compared to the bit; elsewhere one forward pass over the
stored tokens judges them (teacher forcing).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from producer.calibration_check import calibration_lines
from producer.dataset import Dataset, blob_of, row_name
from producer.environment import Environment, backend_differences, look_around
from producer.file_check import check_files
from producer.row_comparison import compare_rows, first_difference
from producer.row_selection import RowSelection
from producer.run_options import VERIFY_MODES
from producer.step_display import StepDisplay
from producer.teacher_forced_check import INPUT_ERRORS, Tolerance, check_row
from producer.verify_report import RowVerdict, VerifyReport
from schemas.errors import InputError, LandingError
from schemas.manifest import ShardRecord
from schemas.profile import Backend
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from schemas.tables import GENERATED_COLUMNS, table_from_bytes, table_to_bytes
from worker.engine.client import EngineProcess
from worker.engine.scripted import is_scripted
from worker.remote_path import Place

BATCH_ROWS = 64  # rows handed to the engine at once: fills its slots, and bounds what a stop has to wait for
PROBABILITIES_SHOWN = 10  # differing rows whose two probabilities are looked up
REPEATABLE_ERRORS = (*INPUT_ERRORS, "NonFiniteLogitsError")

Chosen = list[tuple[ShardRecord, pa.Table]]
"""Rows by part file."""


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify and how.

    Attributes:
        selection: which rows.
        mode: one of `VERIFY_MODES`.
        model: where the model is here; None is the manifest's name for it.
        mtp: where the head is here; None likewise.
        draft_model: where the draft model is here; None likewise.
        files: whether to check the part files' contents.
        trust_remote_code: code that comes with the model may run.
    """

    selection: RowSelection = field(default_factory=RowSelection)
    mode: str = VERIFY_MODES[0]
    model: str | None = None
    mtp: str | None = None
    draft_model: str | None = None
    files: bool = True
    trust_remote_code: bool = False


def verify(out: Place, request: VerifyRequest, display: StepDisplay | None = None) -> VerifyReport:
    """Verify a dataset folder.

    Args:
        out: the folder.
        request: what to verify and how.
        display: is told what goes on; None is nobody.

    Raises:
        InputError, DecodeError: no dataset there, one that is not complete yet, or an id that it does not have.
        ModelError, HeadError, EngineError: the model cannot be run here.
    """
    display = display or StepDisplay()
    dataset = Dataset.open(out)
    if unfinished := dataset.unfinished():
        raise InputError("\n".join([*unfinished, "verify looks at finished datasets"]))
    report = VerifyReport(out, rows_total=sum(shard.rows for shard in dataset.manifest.shards))
    if request.files:
        report.files = len(dataset.manifest.shards)
        report.file_problems = check_files(dataset, lambda files: display.step("checking files", files, report.files))
        if not report.file_problems:
            report.calibration, report.calibration_broken = calibration_lines(dataset)
    environment = look_around(dataset.manifest, model=request.model, head=request.mtp, draft_model=request.draft_model, note=display.note)
    report.environment += environment.notes
    if environment.model_problem:
        report.blocked.append(f"{environment.model_problem}; no row can be verified without it")
        return report
    engine = EngineProcess(trust_remote_code=request.trust_remote_code)
    try:
        session = _Session(engine, environment, report, display, request.selection.rows(dataset))
        session.run(request.selection.tables(dataset), request.mode)
    except LandingError as error:  # a part file that cannot be read; the others were judged up to there
        if str(error) not in report.file_problems:
            report.file_problems.append(str(error))
    finally:
        engine.close()
    return report


class _Session:
    """One engine and the rows that it judges."""

    def __init__(
        self, engine: EngineProcess, environment: Environment, report: VerifyReport, display: StepDisplay, rows: int | None
    ) -> None:
        self._engine = engine
        self._environment = environment
        self._report = report
        self._display = display
        self._rows = rows
        self._looked_up = 0
        self._surprise = 0.0
        self._variance = 0.0

    def run(self, chosen: Iterable[tuple[ShardRecord, pa.Table]], mode: str) -> None:
        """Judge the chosen rows, each in the way that its shard's backend allows."""
        spec = self._environment.spec
        forced = mode == VERIFY_MODES[2]
        if self._environment.drafter_problem and not forced:
            self._report.blocked.append(f"{self._environment.drafter_problem}; drafts cannot be repeated, rows are teacher-forced")
            forced = True
        if forced:
            # Whatever drafts takes no part, and need not be here.
            spec = replace(spec, head=None, draft_model=None, profile=replace(spec.profile, depth=0))
        self._display.note("loading the model")
        backend = self._engine.load(spec)
        judges = {False: self._regenerate, True: self._score}
        waiting: dict[bool, Chosen] = {False: [], True: []}
        for shard, table in chosen:
            score = self._must_score(shard, backend, forced=forced, insist=mode == VERIFY_MODES[1])
            waiting[score].append((shard, self._without_crashes(table)))
            if sum(rows.num_rows for _, rows in waiting[score]) >= BATCH_ROWS:
                judges[score](spec, waiting[score])
                waiting[score] = []
        for score, rows in waiting.items():
            if rows:
                judges[score](spec, rows)
        if self._variance > 0.0:
            self._report.surprise_z = self._surprise / math.sqrt(self._variance)

    def _show(self, tally: Tally) -> None:
        """Rows that have been judged, and those of the batch in work that are ready."""
        self._display.step("verifying rows", len(self._report.verdicts) + self._report.skipped + tally.rows, self._rows)

    def _must_score(self, shard: ShardRecord, backend: Backend, *, forced: bool, insist: bool) -> bool:
        """Whether a shard's rows are teacher-forced here; what is new about its backend is reported."""
        differences = backend_differences(shard.backend, backend)
        score = forced or (bool(differences) and not insist)
        if differences:
            consequence = "rows may differ in some bit" if forced or insist else "rows are teacher-forced"
            self._remark(f"another backend class ({', '.join(differences)}): {consequence}")
        if not score and not backend.row_invariant:
            self._remark("this backend is not row-invariant: a row may depend on its slot, and differ for that alone")
        return score

    def _remark(self, text: str) -> None:
        if text not in self._report.environment:
            self._report.environment.append(text)

    def _without_crashes(self, table: pa.Table) -> pa.Table:
        """The rows that can be repeated: one that ended its engine would end ours too."""
        crashed = [error is not None and error["type"] not in REPEATABLE_ERRORS for error in table["error"].to_pylist()]
        self._report.skipped += sum(crashed)
        return table.filter(pa.array([not skip for skip in crashed], pa.bool_()))

    def _regenerate(self, spec: RunSpec, chosen: Chosen) -> None:
        for shards, table in _batches(chosen):
            started = time.perf_counter()
            outcome = self._engine.generate(spec, 0, table_to_bytes(blob_of(table)), on_tally=self._show, stopped=lambda: False)
            fresh = table_from_bytes(outcome.rows).to_pylist()
            self._took("regenerated", time.perf_counter() - started - outcome.load_seconds, outcome.tally.completion_tokens)
            for index, (shard, stored, made) in enumerate(zip(shards, table.to_pylist(), fresh, strict=True)):
                problems = self._compare(spec, table.slice(index, 1), stored, made)
                self._report.verdicts.append(_verdict(shard, stored, "regenerated", problems))
            self._show(Tally())

    def _compare(self, spec: RunSpec, row: pa.Table, stored: dict[str, Any], made: dict[str, Any]) -> list[str]:
        """What differs, the first token with both probabilities in front."""
        fields = [name for name in stored if name in GENERATED_COLUMNS]
        differences = compare_rows(stored, made, fields)
        if not differences:
            return []
        place = first_difference(stored["token_ids"], made["token_ids"])
        problems = [str(difference) for difference in differences if difference.field != "token_ids"]
        if place is not None:
            problems.insert(0, self._describe(spec, row, [stored["token_ids"], made["token_ids"]], place))
        if any(difference.field == "prompt_tokens" for difference in differences):
            problems.insert(0, "the prompt encodes to another length: its text, the chat template or the tokenizer was changed")
        return problems

    def _describe(self, spec: RunSpec, row: pa.Table, versions: list[list[int]], place: int) -> str:
        """`token_ids: 17 (p = 0.31) in the dataset, 4 (p = 0.22) regenerated, first at token 5`."""
        pair = [token_ids[: place + 1] for token_ids in versions]
        probabilities = ["", ""]
        if self._looked_up < PROBABILITIES_SHOWN and not is_scripted(spec.model.name):
            self._looked_up += 1
            scores = self._scores(spec, pa.concat_tables([row, row]), pair)
            probabilities = [_probability(score, ids, place) for score, ids in zip(scores, pair, strict=True)]
        mine, theirs = (f"{ids[place] if place < len(ids) else 'end'}{text}" for ids, text in zip(pair, probabilities, strict=True))
        return f"token_ids: {mine} in the dataset, {theirs} regenerated, first at token {place}"

    def _score(self, spec: RunSpec, chosen: Chosen) -> None:
        tolerance = Tolerance.of(spec)
        for shards, table in _batches(chosen):
            rows = table.to_pylist()
            started = time.perf_counter()
            scores = self._scores(spec, table, [row["token_ids"] for row in rows], self._show)
            self._took("teacher-forced", time.perf_counter() - started, sum(len(row["token_ids"]) for row in rows))
            for shard, stored, scored in zip(shards, rows, scores, strict=True):
                problems = check_row(stored, scored, tolerance)
                self._report.verdicts.append(_verdict(shard, stored, "teacher-forced", problems))
                self._surprise += scored["surprise"] or 0.0
                self._variance += scored["surprise_variance"] or 0.0
                self._report.edges += sum(0.0 < shortfall <= tolerance.edge for shortfall in scored["shortfall"] or ())
            self._show(Tally())

    def _scores(
        self, spec: RunSpec, table: pa.Table, token_ids: list[list[int]], show: Callable[[Tally], None] = lambda _: None
    ) -> list[dict[str, Any]]:
        asked = blob_of(table).append_column("token_ids", pa.array(token_ids, pa.list_(pa.int32())))
        scores: list[dict[str, Any]] = table_from_bytes(self._engine.score(spec, table_to_bytes(asked), on_tally=show)).to_pylist()
        return scores

    def _took(self, mode: str, seconds: float, tokens: int) -> None:
        self._report.seconds[mode] = self._report.seconds.get(mode, 0.0) + seconds
        self._report.tokens[mode] = self._report.tokens.get(mode, 0) + tokens


def _batches(chosen: Chosen) -> Iterator[tuple[list[ShardRecord], pa.Table]]:
    """The chosen rows in tables of up to BATCH_ROWS, with the shard of every row."""
    shards = [shard for shard, table in chosen for _ in range(table.num_rows)]
    whole = pa.concat_tables([table.replace_schema_metadata(None) for _, table in chosen])
    for start in range(0, whole.num_rows, BATCH_ROWS):
        yield shards[start : start + BATCH_ROWS], whole.slice(start, BATCH_ROWS)


def _verdict(shard: ShardRecord, row: dict[str, Any], mode: str, problems: list[str]) -> RowVerdict:
    return RowVerdict(row_name(row), row["row"], row["sample"], shard.file, mode, tuple(problems))


def _probability(score: dict[str, Any], ids: list[int], place: int) -> str:
    if score["error"] is not None or place >= len(ids):
        return ""
    return f" (p = {math.exp(score['logprobs'][place]):.6g})"
