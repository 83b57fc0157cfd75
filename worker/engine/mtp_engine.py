"""`MTPEngine`: completes a shard's requests with a target and its MTP head, one cohort per capacity."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pyarrow as pa

from sampling.batched import BatchedSampler, Sampler
from sampling.grouped import GroupedSampler
from sampling.shared_noise import SharedNoiseSampler
from schemas.errors import EngineError, ModelError, RowError
from schemas.profile import Backend, ExecutionProfile
from schemas.progress import Tally
from schemas.run_spec import ModelRef, RunSpec
from worker.engine import blas, model_store
from worker.engine.auto_drafter import AutoDrafter
from worker.engine.cohort import Cohort
from worker.engine.cohort_shape import CohortShape
from worker.engine.completion import Completion, Request
from worker.engine.drafter import Drafter, NoDrafter
from worker.engine.encoding import check_bias, check_length, encode_prompt, last_message_start
from worker.engine.engine import OnCycle, Timings
from worker.engine.head_drafter import HeadDrafter
from worker.engine.invariance import is_row_invariant
from worker.engine.lookup_drafter import LookupDrafter
from worker.engine.memory import check_fit, cohort_bytes
from worker.engine.model_drafter import ModelDrafter
from worker.engine.mtp_head import MTPHead
from worker.engine.prefill import KnownBeginning, Prefill
from worker.engine.row import Row
from worker.engine.rules import Rules
from worker.engine.teacher_forcing import score_rows
from worker.engine.trunk import Trunk

AUTO_SHORTEST = 4  # tokens of a match that the auto drafter trusts more than a head
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def backend_here(*, row_invariant: bool) -> Backend:
    """This process's backend; `row_invariant` is what the probe found."""
    return Backend(
        device=mx.default_device().type.name,
        chip=str(mx.device_info()["device_name"]),
        mlx=version("mlx"),
        blas=blas.prepare(),
        row_invariant=row_invariant,
    )


class MTPEngine:
    """A loaded target, its head if there is one, and the profile they run under.

    Attributes:
        backend: this machine, with the answer of the invariance probe.
    """

    def __init__(self, trunk: Trunk, head: MTPHead | None, draft_model: Trunk | None, profile: ExecutionProfile) -> None:
        self._trunk = trunk
        self._head = head
        self._draft_model = draft_model
        self._rules = Rules(trunk)
        self._known: dict[tuple[str, int | None], KnownBeginning] = {}
        self.backend = backend_here(
            row_invariant=is_row_invariant(trunk, slots=profile.slots, depth=profile.depth, dtype=_DTYPES[profile.dtype])
        )

    @classmethod
    def load(cls, spec: RunSpec, *, trust_remote_code: bool = False) -> "MTPEngine":
        """Load what a spec names and make sure that it is what the spec means; `trust_remote_code` as in `Trunk.load`.

        Raises:
            ModelError, HeadError: a file cannot be found or loaded, or its digest is another than the spec's.
        """
        dtype = _DTYPES[spec.profile.dtype]
        folder = model_store.resolve_model(spec.model.name)
        _check_digest(spec.model, model_store.digest_folder(folder), folder)
        trunk = Trunk.load(folder, dtype, trust_remote_code=trust_remote_code)
        head = None
        if spec.head is not None and spec.profile.depth > 0:
            path = model_store.resolve_head(spec.head.name)
            _check_digest(spec.head, model_store.digest_head(path), path)
            head = MTPHead.load(path, trunk, dtype)
        draft_model = None
        if spec.draft_model is not None and spec.profile.depth > 0:
            draft_folder = model_store.resolve_model(spec.draft_model.name)
            _check_digest(spec.draft_model, model_store.digest_folder(draft_folder), draft_folder)
            draft_model = Trunk.load(draft_folder, dtype, trust_remote_code=trust_remote_code)
            _check_draft_model(trunk, draft_model, draft_folder)
        return cls(trunk, head, draft_model, spec.profile)

    @property
    def trunk(self) -> Trunk:
        """The target."""
        return self._trunk

    def complete(self, spec: RunSpec, requests: Sequence[Request], timings: Timings, on_cycle: OnCycle) -> list[Completion]:
        """One completion per request, in the same order; a request that cannot run becomes an error row."""
        mx.reset_peak_memory()
        done: dict[tuple[int, int], Completion] = {}
        for capacity, rows in sorted(self._rows_by_capacity(spec, requests, done).items()):
            self._complete_cohort(spec, capacity, rows, done, timings, on_cycle)
        timings.peak_bytes = mx.get_peak_memory()
        return [done[request.index, request.sample] for request in requests]

    def score(self, spec: RunSpec, rows: pa.Table, on_row: Callable[[], None]) -> pa.Table:
        """What the target says of rows that exist, by a forward pass over each."""
        return score_rows(self._trunk, self._rules, spec, rows, on_row)

    def _drafter(self, spec: RunSpec, sampler: Sampler, shape: CohortShape) -> Drafter:
        if shape.depth == 0:
            return NoDrafter()
        if spec.drafter == "lookup":
            return LookupDrafter(shape.depth, shape.slots, self._trunk.vocab_size)
        learned: Drafter
        if self._head is not None:
            learned = HeadDrafter(self._head, sampler, shape)
        else:
            assert self._draft_model is not None
            learned = ModelDrafter(self._draft_model, sampler, shape)
        if spec.drafter == "auto":
            return AutoDrafter(LookupDrafter(shape.depth, shape.slots, self._trunk.vocab_size, AUTO_SHORTEST), learned)
        return learned

    def _rows_by_capacity(
        self, spec: RunSpec, requests: Sequence[Request], done: dict[tuple[int, int], Completion]
    ) -> dict[int, list[Row]]:
        """The requests that can run, by the smallest capacity that holds them; the others go to `done` as error rows."""
        rows: dict[int, list[Row]] = defaultdict(list)
        encoded: dict[int, list[int] | RowError] = {}  # by record: all samples share one encoding
        for request in requests:
            if request.index not in encoded:
                encoded[request.index] = self._encode(spec, request)
            prompt_ids = encoded[request.index]
            if isinstance(prompt_ids, RowError):
                done[request.index, request.sample] = Completion.failed(request, prompt_ids)
                continue
            rows[self._capacity(request.own(spec), len(prompt_ids))].append(self._row(spec, request, prompt_ids))
        return rows

    def _encode(self, spec: RunSpec, request: Request) -> list[int] | RowError:
        longest = spec.profile.capacities[-1] - _overhang(spec)
        try:
            prompt_ids = encode_prompt(request, self._trunk.tokenizer, raw=spec.raw, template_args=spec.template_args)
            check_length(len(prompt_ids), request.own(spec).max_tokens, min(self._trunk.context or longest, longest))
            check_bias(request, self._trunk.vocab_size)
        except RowError as error:
            return error
        return prompt_ids

    def _row(self, spec: RunSpec, request: Request, prompt_ids: list[int]) -> Row:
        own = request.own(spec)
        return Row(
            request,
            prompt_ids,
            max_tokens=own.max_tokens,
            stop=own.stop,
            tokenizer=self._trunk.tokenizer,
            depth=spec.profile.depth,
            sampler=own.sampler,
            ignore_eos=spec.ignore_eos,
            mask=self._rules.mask(spec, prompt_ids),
        )

    def _capacity(self, spec: RunSpec, prompt_tokens: int) -> int:
        needed = prompt_tokens + spec.max_tokens + _overhang(spec)
        return next(capacity for capacity in spec.profile.capacities if capacity >= needed)

    def _cohort(self, spec: RunSpec, capacity: int, rows: list[Row], timings: Timings, sampler: Sampler) -> tuple[Cohort, Prefill]:
        """An empty cohort for some rows, and the prefill of their prompts."""
        elastic = self.backend.row_invariant
        shape = CohortShape(
            slots=min(spec.profile.slots, len(rows)) if elastic else spec.profile.slots,
            capacity=capacity,
            depth=spec.profile.depth,
            prefill_chunk=spec.profile.prefill_chunk,
            elastic=elastic,
        )
        drafter = self._drafter(spec, sampler, shape)
        own_cuts = self._own_cuts(spec, rows)
        known = self._known.get(self._known_key(spec, capacity))
        prefill = Prefill(self._trunk, drafter, shape, timings, rows, own_cuts, known)
        needed = cohort_bytes(prefill.nothing.caches, shape.slots, shape.depth, self._trunk.vocab_size, prefill.most_kept)
        check_fit(needed, slots=shape.slots, capacity=capacity)
        return Cohort(self._trunk, drafter, sampler, shape, timings), prefill

    def _own_cuts(self, spec: RunSpec, rows: list[Row]) -> list[list[int]]:
        """For every row where its last message begins, behind what a system prompt or examples put before many of them."""
        if self.backend.row_invariant or spec.raw:  # prompts are cut wherever they part; or there are no messages
            return [[] for _ in rows]
        by_record = {row.request.index: row for row in rows}
        tokenizer, arguments = self._trunk.tokenizer, spec.template_args
        cuts = {index: [last_message_start(row.request, tokenizer, row.prompt_ids, arguments)] for index, row in by_record.items()}
        return [cuts[row.request.index] for row in rows]

    def _known_key(self, spec: RunSpec, capacity: int) -> tuple[str, int | None]:
        """Beginnings that were read may be shared by cohorts with the same kind of drafter, and of the same capacity if that matters."""
        return spec.drafter, None if self.backend.row_invariant else capacity

    def _sampler(self, spec: RunSpec) -> BatchedSampler:
        kind = SharedNoiseSampler if spec.coupling == "shared-noise" else BatchedSampler
        draft_ids = self._head.draft_ids if self._head is not None else None
        try:
            return kind(spec.sampler, self._trunk.vocab_size, draft_ids, end_ids=sorted(self._trunk.eos_ids))
        except ValueError as error:  # a token id that this model does not have
            raise EngineError(f"the sampler does not fit {spec.model.name}: {error}") from error

    def begin(self, spec: RunSpec, request: Request, wrap: Callable[[BatchedSampler], BatchedSampler]) -> tuple[Cohort, Row]:
        """A cohort that decodes one request and nothing else, with its sampler wrapped.

        Raises:
            RowError: the request cannot run.
        """
        prompt_ids = self._encode(spec, request)
        if isinstance(prompt_ids, RowError):
            raise prompt_ids
        own = request.own(spec)
        row = self._row(spec, request, prompt_ids)
        cohort, prefill = self._cohort(spec, self._capacity(own, len(prompt_ids)), [row], Timings(), wrap(self._sampler(own)))
        cohort.admit(0, row, prefill.read(row))
        return cohort, row

    def _complete_cohort(
        self,
        spec: RunSpec,
        capacity: int,
        waiting: list[Row],
        done: dict[tuple[int, int], Completion],
        timings: Timings,
        on_cycle: OnCycle,
    ) -> None:
        sampler = GroupedSampler(lambda config: self._sampler(replace(spec, sampler=config)))
        cohort, prefill = self._cohort(spec, capacity, waiting, timings, sampler)

        left = sum(len(row.prompt_ids) for row in waiting)

        def tally() -> Tally:
            finished = sum((completion.tally() for completion in done.values()), Tally(prompt_tokens_left=left))
            return sum((row.tally() for row in cohort.rows if row is not None), finished)

        def reading(position: int) -> None:
            on_cycle(lambda: tally() + Tally(prompt_tokens=position, prompt_tokens_left=-position))

        # Long prompts first: rows of like length share narrow attention windows, and no long row is left alone at the end.
        queue = iter(prefill.order)
        exhausted = False
        while True:
            for slot in cohort.free_slots:
                if not exhausted and (row := next(queue, None)) is not None:
                    cohort.admit(slot, row, prefill.read(row, reading))
                    left -= len(row.prompt_ids)
                    on_cycle(tally)
                else:
                    exhausted = True
            if exhausted:
                if prefill.known is not None:
                    self._known[self._known_key(spec, capacity)] = prefill.known
                cohort.shrink()
            if all(row is None for row in cohort.rows):
                return
            for completion in cohort.cycle():
                done[completion.request.index, completion.request.sample] = completion
            on_cycle(tally)


def _overhang(spec: RunSpec) -> int:
    """Positions that a last cycle may write past the budget."""
    return spec.profile.depth + 1


def _check_draft_model(trunk: Trunk, draft_model: Trunk, folder: Path) -> None:
    """Refuse a draft model that speaks of other tokens, or that cannot read a token twice."""
    if draft_model.vocab_size != trunk.vocab_size or draft_model.tokenizer.get_vocab() != trunk.tokenizer.get_vocab():
        raise ModelError(
            f"the draft model {folder} must have the target's tokenizer, {trunk.vocab_size} ids; received {draft_model.vocab_size} ids"
            + (" with other texts" if draft_model.vocab_size == trunk.vocab_size else "")
        )
    if draft_model.is_recurrent:
        raise ModelError(f"the draft model {folder} has recurrent layers; a draft model must attend to all positions in every layer")


def _check_digest(ref: ModelRef, files: dict[str, str], where: Path) -> None:
    digest = model_store.combined_digest(files)
    if digest != ref.digest:
        other = sorted(name for name in {*files, *ref.files} if files.get(name) != ref.files.get(name))
        raise ModelError(f"{where} is not the {ref.name} that the run was submitted with; these files differ: {', '.join(other)}")
