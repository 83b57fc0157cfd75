"""`RunPlan`: from options to a checked prompts file and a frozen specification, and what the output folder means for them."""

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from producer.backend_rule import BackendRule
from producer.manifest_file import read_manifest
from producer.own_settings import setting_of
from producer.prompts import open_prompts, with_requested
from producer.run_lock import SCRATCH
from producer.run_options import RunOptions
from producer.source import PromptSource
from schemas.errors import InputError, RunMismatchError, SpecmillError
from schemas.manifest import Manifest
from schemas.profile import ANY, ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from worker.engine import blas
from worker.engine.model_store import combined_digest, digest_folder, digest_head, resolve_head, resolve_model
from worker.engine.scripted import is_scripted
from worker.engine.smollm2 import silent
from worker.part_names import DATA
from worker.remote_path import Place

UNIMPORTANT = (SCRATCH, ".DS_Store")


@dataclass(frozen=True)
class RunPlan:
    """What will be run.

    Attributes:
        source: the prompts file, seen whole.
        spec: the specification; its run_id is the manifest's when the run is resumed.
        manifest: what the output folder holds already, or None.
    """

    source: PromptSource
    spec: RunSpec
    manifest: Manifest | None

    def complete(self, out: Place) -> bool:
        """Whether nothing is left to do: the manifest says so and its part files are there."""
        if self.manifest is None or self.manifest.status != "complete":
            return False
        there = {f"{DATA}/{path.name}" for path in (out / DATA).glob("*.parquet")}
        return all(shard.file in there for shard in self.manifest.shards)

    def backend_rule(self) -> BackendRule:
        """What `--backend` demands, with what has landed taken in.

        Raises:
            BackendError: they contradict each other.
        """
        rule = BackendRule.of(self.spec)
        rule.check_landed(self.manifest.shards if self.manifest is not None else ())
        return rule


def make_plan(options: RunOptions, note: Callable[[str], None]) -> RunPlan:
    """Check everything that can be checked before anything starts.

    Args:
        options: what was asked for.
        note: receives a line per step that takes a while.

    Raises:
        InputError: the prompts file, or an output folder that holds something else.
        ModelError, HeadError: the model or the head.
        RunMismatchError: the output folder holds a run with another specification.
        BackendError: part files there are of another backend class than the run wants.
    """
    manifest = _found(options)
    if options.shard_size is None and manifest is not None:
        options = replace(options, shard_size=manifest.spec.shard_size)
    source = open_prompts(options, note)
    options, source = with_requested(options, source, note)
    spec = _spec(options, source, note)
    if manifest is None:
        return RunPlan(source, spec, None)
    if options.auto_depth:  # measured and frozen when the run began
        frozen = manifest.spec.profile
        slots = spec.profile.slots if "slots" in options.given else frozen.slots
        spec = replace(spec, profile=replace(spec.profile, slots=slots, depth=frozen.depth))
    differences = manifest.spec.differences(spec)
    if differences:
        raise RunMismatchError(_mismatch(options, differences))
    plan = RunPlan(source, replace(spec, run_id=manifest.spec.run_id, backend=options.backend or manifest.spec.backend), manifest)
    plan.backend_rule()
    return plan


def model_ref(name: str, note: Callable[[str], None]) -> ModelRef:
    """A model as named, with the digests of its files; a scripted one has none.

    Raises:
        ModelError: there is no such model.
    """
    if is_scripted(name):
        return _scripted_ref(name)
    files = digest_folder(resolve_model(name, report=note), note)
    return ModelRef(name, combined_digest(files), files)


def head_ref(name: str, note: Callable[[str], None] = silent) -> ModelRef:
    """A head as named, with the digest of its files; `note` receives a line per step of a download.

    Raises:
        HeadError: there is no such head.
    """
    if is_scripted(name):
        return _scripted_ref(name)
    files = digest_head(resolve_head(name, report=note))
    return ModelRef(name, combined_digest(files), files)


def _spec(options: RunOptions, source: PromptSource, note: Callable[[str], None]) -> RunSpec:
    if not is_scripted(options.model):
        _check_tokenizer(options, note)
    try:
        return RunSpec(
            run_id=uuid.uuid4().hex,
            model=model_ref(options.model, note),
            head=None if options.mtp is None else head_ref(options.mtp, note),
            sampler=options.sampler,
            max_tokens=options.max_tokens,
            stop=options.stop,
            samples=options.samples,
            seed=options.seed,
            coupling=options.coupling,
            profile=ExecutionProfile(slots=options.slots, depth=options.resolved_depth, dtype=options.dtype),
            raw=options.raw,
            logprobs=options.logprobs,
            shard_size=source.shard_size,
            records=source.records,
            prompts_digest=source.digest,
            per_row=tuple(sorted(map(setting_of, source.own))),
            template_args=options.template_args,
            drafter=options.resolved_drafter,
            backend=options.backend or ANY,
            draft_model=None if options.draft_model is None else model_ref(options.draft_model, note),
            constraint=options.constraint,
            ignore_eos=options.ignore_eos,
            thinking_budget=options.thinking_budget,
        )
    except SpecmillError:
        raise
    except ValueError as error:
        raise SpecmillError(str(error)) from error


def _check_tokenizer(options: RunOptions, note: Callable[[str], None]) -> None:
    """Refuse what the model's tokenizer cannot tell: where thinking ends, or which token a grammar names. Loaded only if that is asked.

    Raises:
        ModelError: a budget for thinking, and no think tags; or the tokenizer needs code of its own.
        GrammarError: a grammar names a token that the model does not have.
    """
    names_tokens = options.constraint is not None and options.constraint.kind == "grammar"
    if options.thinking_budget is None and not names_tokens:
        return
    try:
        blas.prepare()  # it must come before mlx, which mlx-lm imports
    except ValueError as error:
        raise SpecmillError(str(error)) from error
    from worker.engine.grammar import Grammar, grammar_tokenizer
    from worker.engine.model_loading import load_tokenizer
    from worker.engine.thinking import ThinkTags

    tokenizer = load_tokenizer(resolve_model(options.model, report=note), trust_remote_code=options.trust_remote_code)
    if options.thinking_budget is not None:
        ThinkTags.of(tokenizer, options.model)
    if options.constraint is not None and names_tokens:
        size = max(tokenizer.get_vocab().values()) + 1
        Grammar(options.constraint, grammar_tokenizer(tokenizer, size, frozenset(tokenizer.eos_token_ids)))


def _found(options: RunOptions) -> Manifest | None:
    """The manifest in the output folder.

    Raises:
        InputError: the folder holds something that no run of ours began.
    """
    if not options.out.exists():
        return None
    if not options.out.is_dir():
        raise InputError(f"--out {options.out} is a file; it must be a folder")
    manifest = read_manifest(options.out)
    if manifest is None:
        strangers = sorted(path.name for path in options.out.iterdir() if path.name not in UNIMPORTANT)
        if strangers:
            raise InputError(f"--out {options.out} holds {strangers[0]!r} and no run; give a new or an empty folder")
    return manifest


def _scripted_ref(name: str) -> ModelRef:
    return ModelRef(name, hashlib.sha256(name.encode()).hexdigest(), {})


def _mismatch(options: RunOptions, differences: list[str]) -> str:
    lines = [f"{options.out} holds a run with other settings (there / now):", *(f"  {difference}" for difference in differences)]
    return "\n".join([*lines, "repeat the old settings to go on with it, or give another --out for these"])
