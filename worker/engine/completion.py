"""`Request` and `Completion`: one output row before and after the engine, and the Arrow tables at both ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sampling.counter_rng import row_key
from schemas.errors import RowError
from schemas.progress import Tally
from schemas.row_sampling import RowSampling
from schemas.run_spec import RunSpec
from schemas.tables import row_schema


@dataclass(frozen=True)
class Request:
    """One completion to generate.

    Attributes:
        index: position of the record in its blob.
        sample: sample number, 0 to spec.samples - 1.
        key: the row key, 64 bits; seeds every draw of the row.
        prompt: the prompt, or None when there are messages.
        messages: `{"role": …, "content": …}` each, or None when there is a prompt.
        bad_input: why the line cannot run, or None.
        sampling: what the row asks for in place of the run's settings, or None.
    """

    index: int
    sample: int
    key: int
    prompt: str | None
    messages: list[dict[str, str]] | None
    bad_input: str | None
    sampling: RowSampling | None = None

    def own(self, spec: RunSpec) -> RunSpec:
        """The run as this row has it."""
        return spec if self.sampling is None else self.sampling.of(spec)


@dataclass
class Acceptance:
    """How speculation went in one row; grows cycle by cycle. Fields as in the dataset's `acceptance` column."""

    cycles: int = 0
    residual: int = 0
    bonus: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    expected_by_depth: list[float] = field(default_factory=list)
    variance_by_depth: list[float] = field(default_factory=list)

    @classmethod
    def at_depth(cls, depth: int) -> "Acceptance":
        """Nothing yet, with room for drafts at depths 1 to `depth`."""
        return cls(0, 0, 0, [0] * depth, [0] * depth, [0.0] * depth, [0.0] * depth)

    @property
    def expected_accepted(self) -> float:
        """Σα over the judged drafts."""
        return sum(self.expected_by_depth)

    @property
    def accepted_variance(self) -> float:
        """Σα(1-α) over the judged drafts."""
        return sum(self.variance_by_depth)

    def judge(self, depth: int, alpha: float) -> None:
        """Count a draft that was judged; `depth` counts from 0."""
        self.expected_by_depth[depth] += alpha
        self.variance_by_depth[depth] += alpha * (1.0 - alpha)

    def tally(self, *, prompt_tokens: int, completion_tokens: int, rows: int = 0, failed: int = 0) -> Tally:
        """The row's part of its shard's tally."""
        return Tally(
            rows=rows,
            failed=failed,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cycles=self.cycles,
            drafted_by_depth=tuple(self.drafted_by_depth),
            accepted_by_depth=tuple(self.accepted_by_depth),
            expected_accepted=self.expected_accepted,
            accepted_variance=self.accepted_variance,
            expected_by_depth=tuple(self.expected_by_depth),
            variance_by_depth=tuple(self.variance_by_depth),
        )

    def column(self) -> dict[str, object]:
        """The value of the `acceptance` column."""
        return {
            "cycles": self.cycles,
            "drafted": sum(self.drafted_by_depth),
            "accepted": sum(self.accepted_by_depth),
            "residual": self.residual,
            "bonus": self.bonus,
            "drafted_by_depth": self.drafted_by_depth,
            "accepted_by_depth": self.accepted_by_depth,
            "expected_accepted": self.expected_accepted,
            "accepted_variance": self.accepted_variance,
            "expected_by_depth": self.expected_by_depth,
            "variance_by_depth": self.variance_by_depth,
        }


@dataclass
class Completion:
    """What became of one request.

    Attributes:
        request: the request.
        prompt_tokens: tokens of the encoded prompt; 0 when it could not be encoded.
        text: the completion, without the stop token and cut before a stop string.
        token_ids: every committed token; a stop token or the token that completed a stop string is the last.
        finish_reason: stop, length or error.
        error: why the row failed, or None.
        acceptance: speculation statistics.
        logprobs: log of the target's probability of each token, after the sampler config.
    """

    request: Request
    prompt_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "error"
    error: RowError | None = None
    acceptance: Acceptance = field(default_factory=Acceptance)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def failed(cls, request: Request, error: RowError, prompt_tokens: int = 0) -> "Completion":
        """An error row: no text, no tokens, all counts zero."""
        return cls(request=request, prompt_tokens=prompt_tokens, error=error)

    def tally(self) -> Tally:
        """This row's part of its shard's tally."""
        return self.acceptance.tally(
            rows=1, failed=int(self.error is not None), prompt_tokens=self.prompt_tokens, completion_tokens=len(self.token_ids)
        )


def requests_from_blob(blob: pa.Table, spec: RunSpec) -> list[Request]:
    """The requests of a shard in dataset order: by record, then by sample.

    A blob with a `sample` column asks for that one sample of each record; that is how single rows are made again.
    """
    wanted = ("record_id", "prompt", "messages", "sampling", "bad_input", "sample")
    rows = blob.select([name for name in blob.column_names if name in wanted]).to_pylist()
    requests = []
    for index, row in enumerate(rows):
        sampling = RowSampling.of_column(row.get("sampling"))
        seed = spec.seed if sampling is None or sampling.seed is None else sampling.seed
        requests += [
            Request(
                index=index,
                sample=sample,
                key=row_key(seed, row["record_id"], sample),
                prompt=row.get("prompt"),
                messages=row.get("messages"),
                bad_input=row["bad_input"],
                sampling=sampling,
            )
            for sample in ((row["sample"],) if "sample" in row else range(spec.samples))
        ]
    return requests


def completions_to_table(blob: pa.Table, completions: Sequence[Completion], *, logprobs: bool) -> pa.Table:
    """The dataset rows of a shard, schema `row_schema(blob.schema)`, in the order of the completions."""
    schema = row_schema(blob.schema, logprobs=logprobs)
    repeated = blob.take(pa.array([completion.request.index for completion in completions], pa.int64()))
    generated = {
        "sample": [completion.request.sample for completion in completions],
        "completion": [completion.text for completion in completions],
        "token_ids": [completion.token_ids for completion in completions],
        "finish_reason": [completion.finish_reason for completion in completions],
        "error": [_error_column(completion.error) for completion in completions],
        "prompt_tokens": [completion.prompt_tokens for completion in completions],
        "completion_tokens": [len(completion.token_ids) for completion in completions],
        "seed": [completion.request.key for completion in completions],
        "acceptance": [completion.acceptance.column() for completion in completions],
        "logprob_sum": [sum(completion.logprobs) for completion in completions],
        "logprobs": [completion.logprobs for completion in completions],
    }
    columns = [
        pa.chunked_array([pa.array(generated[name], schema.field(name).type)]) if name in generated else repeated.column(name)
        for name in schema.names
    ]
    return pa.table(columns, schema=schema)


def _error_column(error: RowError | None) -> dict[str, str] | None:
    return None if error is None else {"type": type(error).__name__, "message": str(error)}
