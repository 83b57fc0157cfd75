"""`RunSpec`: everything a row is a function of, frozen when a run is submitted."""

from dataclasses import dataclass, fields

from schemas.constraint import Constraint
from schemas.profile import ANY, ExecutionProfile, checked_demand
from schemas.sampler import SamplerConfig
from schemas.wire import Json, Wire, added

COUPLINGS = ("rejection", "shared-noise")
DRAFTERS = ("head", "model", "lookup", "auto")
MAX_SEED = 2**64 - 1
MAX_SAMPLES = 10_000
MAX_TOKENS = 1_000_000
MAX_SHARD_ROWS = 10_000
_OUTSIDE_CONTRACT = ("run_id", "backend")


@dataclass(frozen=True)
class ModelRef(Wire):
    """A model or head as the user named it, and what it really is.

    Attributes:
        name: alias, folder or Hugging Face id, as given to `--model` or `--mtp`.
        digest: sha256 over the sorted (file name, file sha256) pairs; workers refuse files with another digest.
        files: file name → sha256 hex.
    """

    name: str
    digest: str
    files: dict[str, str]


@dataclass(frozen=True)
class RunSpec(Wire):
    """One run. Two specs with the same `contract()` yield the same rows on one backend.

    Attributes:
        run_id: the ledger's name of the run; letters and digits, not part of the contract.
        model: the target.
        head: the MTP head, or None.
        sampler: one configuration for target and draft.
        max_tokens: completion budget in tokens, ≥ 1.
        stop: stop strings, none empty; the completion is cut before the first one.
        samples: completions per record (`--n`), 1 to 10,000.
        seed: run seed, 0 to 2^64 - 1.
        coupling: how draft and target share randomness: `rejection`, or `shared-noise`, whose tokens do not depend on drafter and depth.
        profile: the execution profile.
        raw: encode the prompt as it stands, without the chat template.
        logprobs: also store the target's log-probability of every token.
        shard_size: records per shard, 1 to 10,000; fixes the part files, never a row.
        records: number of records in the prompts file.
        prompts_digest: sha256 over the canonical records.
        drafter: who drafts when `profile.depth` > 0: the `head`, the draft `model`, the `lookup` of n-grams in the row's own text, or
            `auto` (lookup where it finds a long match, else the head or the draft model).
        draft_model: the separate draft model, or None.
        backend: whose workers may compute shards: `any` class's, the `same` for all, or one class's by name. It limits where rows are made,
            not what they are, and is no part of the contract.
        constraint: the form that every completion must have, or None.
        ignore_eos: end tokens do not end a completion; stop strings and the budget do.
        thinking_budget: most tokens between a model's think tags, 0 to 1,000,000; then the closing one is forced. None is no limit.
        per_row: settings that rows have of their own, in the column `sampling`, where they differ from the run's; sorted. With `n` among
            them, `samples` is 1 and `records` counts each completion of a record.
        template_args: what the chat template is told besides the messages.

    Raises:
        ValueError: a value outside its interval.
    """

    run_id: str
    model: ModelRef
    head: ModelRef | None
    sampler: SamplerConfig
    max_tokens: int
    stop: tuple[str, ...]
    samples: int
    seed: int
    coupling: str
    profile: ExecutionProfile
    raw: bool
    logprobs: bool
    shard_size: int
    records: int
    prompts_digest: str
    drafter: str = "head"
    draft_model: ModelRef | None = None
    backend: str = added(ANY)
    constraint: Constraint | None = added(None)
    ignore_eos: bool = added(False)
    thinking_budget: int | None = added(None)
    per_row: tuple[str, ...] = added(())
    template_args: dict[str, bool | int | float | str | None] = added(factory=dict)

    def __post_init__(self) -> None:
        if not (self.run_id.isalnum() and self.run_id.isascii() and len(self.run_id) <= 64):
            raise ValueError(f"run_id must be 1 to 64 letters or digits; received {self.run_id!r}")
        _check_interval("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_interval("samples", self.samples, 1, MAX_SAMPLES)
        _check_interval("seed", self.seed, 0, MAX_SEED)
        _check_interval("shard_size", self.shard_size, 1, MAX_SHARD_ROWS)
        _check_interval("records", self.records, 0, 2**40)
        if self.coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(COUPLINGS)}; received {self.coupling!r}")
        if any(not text for text in self.stop):
            raise ValueError("stop must hold no empty string; received ''")
        if self.drafter not in DRAFTERS:
            raise ValueError(f"drafter must be one of {', '.join(DRAFTERS)}; received {self.drafter!r}")
        if self.head is not None and self.draft_model is not None:
            raise ValueError("a run drafts with an MTP head or with a draft model; received both")
        checked_demand(self.backend)
        if self.thinking_budget is not None:
            _check_interval("thinking_budget", self.thinking_budget, 0, MAX_TOKENS)
        rivals = {
            "ignore_eos": self.ignore_eos,
            f"min_tokens {self.sampler.min_tokens}": self.sampler.min_tokens > 0,
            "min_tokens of rows' own": "min_tokens" in self.per_row,
        }
        if self.constraint is not None and (rival := next((name for name, given in rivals.items() if given), None)):
            raise ValueError(f"a constraint says itself where a completion may end; received it together with {rival}")
        needed = {"head": self.head, "model": self.draft_model, "auto": self.head or self.draft_model}
        if self.profile.depth > 0 and self.drafter in needed and needed[self.drafter] is None:
            what = {"head": "an MTP head", "model": "a draft model", "auto": "an MTP head or a draft model"}[self.drafter]
            raise ValueError(f"depth must be 0 without {what}; received {self.profile.depth}")

    @property
    def shards(self) -> int:
        """Number of shards: ⌈records / shard_size⌉."""
        return -(-self.records // self.shard_size)

    def shard_records(self, shard: int) -> int:
        """Records in one shard; the last may be short."""
        _check_interval("shard", shard, 0, self.shards - 1)
        return min(self.shard_size, self.records - shard * self.shard_size)

    def contract(self) -> dict[str, Json]:
        """What files are a function of, besides the backend: the wire form without `run_id`, `backend` and the names of models and head."""
        wire = {name: value for name, value in self.encode().items() if name not in _OUTSIDE_CONTRACT}
        for field in ("model", "head", "draft_model"):
            if isinstance(reference := wire[field], dict):
                del reference["name"]
        return wire

    def differences(self, other: "RunSpec") -> list[str]:
        """One line per contract field in which `other` differs: `field: mine / theirs`. A model under another name is the same model."""
        return _differences(self, other, "")


def _check_interval(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}]; received {value}")


def _differences(mine: Wire, theirs: Wire, prefix: str) -> list[str]:
    lines = []
    for field in fields(mine):  # type: ignore[arg-type] # every Wire is a dataclass
        left, right = getattr(mine, field.name), getattr(theirs, field.name)
        if isinstance(left, SamplerConfig | ExecutionProfile):
            lines += _differences(left, right, f"{field.name}.")
        elif field.name == "prompts_digest" and left != right:
            lines.append("prompts_digest: the prompts are others, or in another order")
        elif field.name not in _OUTSIDE_CONTRACT and _compared(left) != _compared(right):
            lines.append(f"{prefix}{field.name}: {_shown(left)} / {_shown(right)}")
    return lines


def _compared(value: object) -> object:
    return value.digest if isinstance(value, ModelRef) else value


def _shown(value: object) -> str:
    if isinstance(value, ModelRef):
        return f"{value.name} ({value.digest[:12]})"
    return f"{value.kind} {value.text}" if isinstance(value, Constraint) else str(value)
