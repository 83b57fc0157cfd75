"""`RunOptions`: what `specmill run` was asked for, before any file is opened."""

import json
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from producer.hub_prompts import name_of
from producer.own_settings import SETTINGS, setting_of
from schemas.constraint import Constraint
from schemas.profile import ANY
from schemas.run_spec import COUPLINGS, RunSpec
from schemas.sampler import SamplerConfig
from worker.patience import STALL_SECONDS
from worker.run_terms import DEFAULT_MAX_ERROR_RATE, PRIORITIES

if TYPE_CHECKING:  # it imports pyarrow, which `--help` does without
    from worker.remote_path import Place

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DEPTH = 2  # with a drafter
VERIFY_MODES = ("auto", "regenerate", "teacher-forced")
ON_BAD_INPUT = ("refuse", "error-row")


@dataclass(frozen=True)
class RunOptions:
    """The options of one run; names and defaults are those of the command line.

    Attributes:
        prompts: the prompts file, a pattern of files, or `-` for standard input.
        out: the dataset's folder.
        model: the target, as `worker.engine.model_store.resolve_model` takes it.
        mtp: the head, as `resolve_head` takes it, or None.
        draft_model: a separate draft model, as `resolve_model` takes it, or None.
        drafter: who drafts; None is the head or the draft model that is given.
        coupling: `rejection` or `shared-noise`.
        sampler: one configuration for target and draft.
        max_tokens: completion budget in tokens.
        samples: completions per record.
        seed: run seed.
        stop: stop strings.
        constraint: the form of every completion, or None.
        ignore_eos: end tokens do not end a completion.
        thinking_budget: most tokens between a model's think tags, or None.
        slots: B.
        depth: K; None is 2 when something drafts and 0 otherwise.
        auto_depth: measure depths before the first shard and freeze the best; `depth` is None then.
        dtype: compute dtype.
        shard_size: records per shard; None is that of the run that is resumed, else `default_shard_size`.
        workers: local worker processes.
        broker: an external broker, or None for an embedded one.
        id_column: expression of the record id, or None.
        prompt_column: expression of the prompt, or None.
        on_bad_input: `refuse` or `error-row`.
        raw: encode prompts as they stand, without the chat template.
        logprobs: store every token's log-probability.
        ignore_calibration: go on when an engine contradicts itself.
        max_error_rate: largest share of failed rows, judged after the first few; bad lines that are kept do not count.
        others: further prompts files, behind the first.
        format: what the files are, a kind of `producer.prompt_files`; None tells from their names.
        template: a Jinja2 template of the prompt, or `@` and a file with one.
        system: a system message for records without one.
        few_shot: a file of messages that go before every prompt, or None.
        limit: only so many records, the first ones.
        sample: only so many records, chosen at random by the run seed.
        per_row: settings that rows have of their own, `NAME` or `NAME=COLUMN` each.
        template_args: what the chat template is told besides the messages.
        metrics_port: serve metrics for Prometheus there, or None.
        given: names of the options that the user gave; they win over what an OpenAI batch file asks for.
        shared: workers that see `out` land parts in it themselves; in an object store they always do.
        backend: whose workers may compute shards, as `RunSpec.backend`; None is any, or what the run that is resumed has.
        trust_remote_code: code that comes with a model may run on this machine.
        priority: one of `worker.run_terms.PRIORITIES`.
        stall_timeout: seconds without a new token before a local worker's engine is killed.
    """

    prompts: Path
    out: "Place"
    model: str = DEFAULT_MODEL
    mtp: str | None = None
    draft_model: str | None = None
    drafter: str | None = None
    coupling: str = "rejection"
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    max_tokens: int = 256
    samples: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    ignore_eos: bool = False
    thinking_budget: int | None = None
    slots: int = 16
    depth: int | None = None
    auto_depth: bool = False
    dtype: str = "float32"
    shard_size: int | None = None
    workers: int = 1
    broker: str | None = None
    id_column: str | None = None
    prompt_column: str | None = None
    on_bad_input: str = "refuse"
    raw: bool = False
    logprobs: bool = False
    ignore_calibration: bool = False
    max_error_rate: float = DEFAULT_MAX_ERROR_RATE
    shared: bool = False
    trust_remote_code: bool = False
    priority: str = PRIORITIES[1]
    stall_timeout: float = STALL_SECONDS
    others: tuple[Path, ...] = ()
    format: str | None = None
    template: str | None = None
    system: str | None = None
    few_shot: Path | None = None
    limit: int | None = None
    metrics_port: int | None = None
    sample: int | None = None
    per_row: tuple[str, ...] = ()
    template_args: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    backend: str | None = None

    @property
    def resolved_depth(self) -> int:
        """K, its default filled in."""
        if self.depth is not None:
            return self.depth
        drafts = self.mtp is not None or self.draft_model is not None or self.drafter is not None
        return DEFAULT_DEPTH if drafts else 0

    @property
    def lands_directly(self) -> bool:
        """Whether workers that reach `out` land parts there themselves."""
        return self.shared or not isinstance(self.out, Path)

    @property
    def resolved_drafter(self) -> str:
        """Who drafts, the default filled in."""
        return self.drafter or ("model" if self.draft_model is not None else "head")

    def command(self, spec: RunSpec) -> str:
        """The shell command that creates the same rows again, with every value that they are a function of."""
        sampler = spec.sampler
        words = ["specmill", "run", *map(name_of, (self.prompts, *self.others)), "--out", str(self.out), "--model", spec.model.name]
        words += ["--mtp", spec.head.name] if spec.head is not None else []
        words += ["--draft-model", spec.draft_model.name] if spec.draft_model is not None else []
        words += ["--drafter", spec.drafter] if spec.drafter in ("lookup", "auto") else []  # the others follow from what is given
        words += ["--coupling", spec.coupling] if spec.coupling != COUPLINGS[0] else []
        settings: dict[str, list[str]] = {
            **{field.name: [repr(getattr(sampler, field.name))] for field in fields(sampler)},
            "logit_bias": [f"{token}={bias!r}" for token, bias in sampler.logit_bias.items()],
            "max_tokens": [str(spec.max_tokens)],
            "n": [str(spec.samples)],
            "seed": [str(spec.seed)],
            "stop": list(spec.stop),
        }
        # An option that is given comes before what a request's body says, so those of the rows must not be given; where a column says it,
        # the run's value is that of its empty cells. `--n` beside a column is refused.
        columns = {setting for text in self.per_row if (setting := setting_of(SETTINGS[text.partition("=")[0]])) != "n"}
        words += [
            word
            for name, values in settings.items()
            if name not in spec.per_row or name in columns
            for value in values
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        words += [word for text in self.per_row for word in ("--per-row", text)]
        words += [word for name, value in spec.template_args.items() for word in ("--chat-template-arg", f"{name}={json.dumps(value)}")]
        words += [f"--{spec.constraint.kind}", spec.constraint.text] if spec.constraint is not None else []
        words += ["--thinking-budget", str(spec.thinking_budget)] if spec.thinking_budget is not None else []
        words += ["--slots", str(spec.profile.slots), "--depth", str(spec.profile.depth), "--dtype", spec.profile.dtype]
        words += ["--shard-size", str(spec.shard_size)]
        words += ["--backend", spec.backend] if spec.backend != ANY else []
        words += [
            word
            for name in ("format", "id_column", "prompt_column", "template", "system", "few_shot", "limit", "sample")
            if (value := getattr(self, name)) is not None
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        words += ["--on-bad-input", self.on_bad_input] if self.on_bad_input != ON_BAD_INPUT[0] else []
        words += [flag for flag, given in (("--raw", spec.raw), ("--logprobs", spec.logprobs), ("--ignore-eos", spec.ignore_eos)) if given]
        return shlex.join(words)
