"""A manifest for people: what was run, with what, where, and what landed."""

from collections import defaultdict

from producer.counted import counted
from producer.sampler_text import drafter_text, form_text, sampler_text
from schemas.manifest import Manifest
from schemas.profile import ANY, SAME, Backend
from schemas.run_spec import ModelRef


def manifest_text(manifest: Manifest, *, files: bool = False, shards: bool = False) -> str:
    """The manifest as text.

    Args:
        manifest: any.
        files: also list every file of model and head with its digest.
        shards: also list every part file with its digest.
    """
    spec, profile = manifest.spec, manifest.spec.profile
    rows, failed = sum(shard.rows for shard in manifest.shards), sum(shard.failed for shard in manifest.shards)
    lines = [
        f"run {spec.run_id}: {manifest.status}, {len(manifest.shards):,} of {counted(spec.shards, 'shard')}, "
        f"{counted(rows, 'row')}, {failed:,} failed"
    ]
    lines += _reference("model", spec.model, files=files)
    lines += _reference("head", spec.head, files=files) if spec.head is not None else []
    lines += _reference("draft", spec.draft_model, files=files) if spec.draft_model is not None else []
    lines.append(f"  drafter    {drafter_text(spec)}")
    lines += [
        f"  prompts    {counted(spec.records, 'record')} × {counted(spec.samples, 'sample')}, sha256 {spec.prompts_digest}",
        f"  encoding   {'as it stands' if spec.raw else 'through the chat template of the model'}"
        + (f", told {', '.join(f'{name} = {value!r}' for name, value in spec.template_args.items())}" if spec.template_args else ""),
        f"  sampler    {sampler_text(spec.sampler)}",
        f"  budget     {counted(spec.max_tokens, 'token')}" + (f", stop at {', '.join(map(repr, spec.stop))}" if spec.stop else ""),
        *([f"  form       {form}"] if (form := form_text(spec)) else []),
        *([f"  rows' own  {', '.join(spec.per_row)}"] if spec.per_row else []),
        f"  seed       {spec.seed}, coupling {spec.coupling}",
        f"  profile    {profile.slots} slots, depth {profile.depth}, {profile.dtype}, prefill chunk {profile.prefill_chunk}, "
        f"capacities {', '.join(map(str, profile.capacities))}",
        f"  versions   {', '.join(f'{name} {version}' for name, version in sorted(manifest.versions.items()))}",
    ]
    if spec.backend != ANY:
        lines.append(f"  demanded   {'one backend class' if spec.backend == SAME else f'the backend class {spec.backend}'} for all shards")
    by_backend: dict[Backend, list[int]] = defaultdict(list)
    for shard in manifest.shards:
        by_backend[shard.backend].append(shard.rows)
    for backend, counts in by_backend.items():
        invariant = "row-invariant" if backend.row_invariant else "not row-invariant"
        name = ", ".join(filter(None, (backend.chip, backend.device, f"mlx {backend.mlx}", backend.blas, invariant)))
        name += f", class {backend.class_name}" if backend.class_name is not None else ""
        lines.append(f"  backend    {name}: {counted(len(counts), 'shard')}, {counted(sum(counts), 'row')}")
    if shards:
        lines += [f"  {s.file}  {counted(s.rows, 'row')}, {s.failed:,} failed, sha256 {s.content_digest}" for s in manifest.shards]
    return "\n".join(lines)


def _reference(what: str, reference: ModelRef, *, files: bool) -> list[str]:
    lines = [f"  {what:<10} {reference.name}, sha256 {reference.digest}"]
    return lines + ([f"    {digest}  {name}" for name, digest in sorted(reference.files.items())] if files else [])
