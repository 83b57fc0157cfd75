"""`Environment`: how this machine differs from the one that a manifest describes, and what therefore cannot match."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from producer.manifest_file import CERTIFICATE, versions
from producer.run_plan import head_ref, model_ref
from schemas.errors import HeadError, ModelError
from schemas.manifest import Manifest
from schemas.profile import Backend
from schemas.run_spec import ModelRef, RunSpec

TEMPLATE_FILES = ("chat_template", "tokenizer_config.json")
TOKENIZER_FILES = ("tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens")
BIT_LIBRARIES = ("mlx", "mlx-lm", "numpy")  # a change of these may change a bit of a row


@dataclass(frozen=True)
class Environment:
    """What was found.

    Attributes:
        spec: the manifest's spec, with the names under which model and drafter were looked for here.
        model_problem: why the model here is not the manifest's, or None.
        drafter_problem: why the head or the draft model here is not the manifest's, or None.
        notes: other differences, one line each, that may or may not show.
    """

    spec: RunSpec
    model_problem: str | None
    drafter_problem: str | None
    notes: tuple[str, ...]


def look_around(
    manifest: Manifest, *, model: str | None, head: str | None, draft_model: str | None, note: Callable[[str], None]
) -> Environment:
    """Compare model, head, draft model and libraries with a manifest; nothing is loaded.

    Args:
        manifest: the dataset's.
        model: where the model is here; None is the manifest's own name for it.
        head: where the head is here; None likewise.
        draft_model: where the draft model is here; None likewise.
        note: receives a line per step that takes a while.
    """
    spec = manifest.spec
    spec = replace(spec, model=replace(spec.model, name=model or spec.model.name))
    try:
        model_problem = _files_problem("model", spec.model, model_ref(spec.model.name, note))
    except ModelError as error:
        model_problem = f"the model cannot be found here ({error}); --model says where it is"
    drafter_problem = None
    if spec.head is not None:
        there = replace(spec.head, name=head or spec.head.name)
        spec = replace(spec, head=there)
        try:
            drafter_problem = _files_problem("MTP head", there, head_ref(there.name, note))
        except HeadError as error:
            drafter_problem = f"the MTP head cannot be found here ({error}); --mtp says where it is"
    if spec.draft_model is not None:
        there = replace(spec.draft_model, name=draft_model or spec.draft_model.name)
        spec = replace(spec, draft_model=there)
        try:
            drafter_problem = _files_problem("draft model", there, model_ref(there.name, note))
        except ModelError as error:
            drafter_problem = f"the draft model cannot be found here ({error}); --draft-model says where it is"
    here = versions()
    notes = [
        f"{name}: {manifest.versions.get(name, 'none')} then, {here.get(name, 'none')} now{_consequence(name)}"
        for name in sorted({*manifest.versions, *here})
        if name != CERTIFICATE and manifest.versions.get(name) != here.get(name)
    ]
    return Environment(spec, model_problem, drafter_problem, tuple(notes))


def backend_differences(then: Backend, now: Backend) -> list[str]:
    """In what two backends are not of one class; empty when their rows must agree to the bit.

    A class is device, chip, mlx version and BLAS: other kernels round differently.
    """
    pairs = [(name, getattr(then, name), getattr(now, name)) for name in ("device", "chip", "mlx", "blas")]
    return [f"{name}: {mine or 'none'} then, {theirs or 'none'} now" for name, mine, theirs in pairs if mine != theirs]


def _files_problem(what: str, then: ModelRef, now: ModelRef) -> str | None:
    if then.digest == now.digest:
        return None
    if then.name != now.name and not (then.files or now.files):
        return f"the {what} is {now.name!r} here and {then.name!r} in the manifest"
    if not set(then.files) & set(now.files):
        named = ", ".join(sorted(then.files)) or then.name
        return f"the {what} is another file here: {', '.join(sorted(now.files)) or now.name}; the manifest names {named}"
    differing = sorted(name for name in {*then.files, *now.files} if then.files.get(name) != now.files.get(name))
    return f"the {what} is not the manifest's: " + "; ".join(f"{name} {_fate(name, then, now)}" for name in differing)


def _fate(name: str, then: ModelRef, now: ModelRef) -> str:
    fate = "is missing here" if name not in now.files else "was not there then" if name not in then.files else "differs"
    if name.startswith(TEMPLATE_FILES):
        return f"{fate} (the chat template or its tokens: prompts may encode differently)"
    if name.startswith(TOKENIZER_FILES):
        return f"{fate} (the tokenizer)"
    return f"{fate} (the weights)" if name.endswith(".safetensors") else fate


def _consequence(name: str) -> str:
    return " (bits of a row may differ)" if name in BIT_LIBRARIES else ""
