"""The models and heads that are on this machine, as text."""

from collections.abc import Sequence
from pathlib import Path

from schemas.errors import DecodeError
from worker.distill.distillation import Distillation, read_distillation
from worker.distill.evaluation_record import Evaluation
from worker.engine.model_store import SHIPPED_HEADS, cache_dir


def model_list(folders: Sequence[Path]) -> str:
    """What is cached, and the heads that `specmill distill` left in these folders."""
    models = sorted(path for path in (cache_dir() / "models").glob("*") if (path / "config.json").is_file())
    lines = ["models"]
    lines += [f"  {path.name}  {_megabytes(path)}  {path}" for path in models]
    lines += [f"  {name}  {size / 1e6:,.0f} MB  Hugging Face cache" for name, size in _hub_models()]
    lines += ["  none cached"] if len(lines) == 1 else []
    lines.append("heads")
    count = len(lines)
    for folder in (SHIPPED_HEADS, cache_dir() / "heads", *folders):
        for path in sorted(folder.glob("*.safetensors")):
            try:
                made = read_distillation(path)
            except (OSError, DecodeError) as error:
                lines.append(f"  {path}  unreadable: {error}")
                continue
            if made is not None:
                lines += _head_lines(path, made)
    lines += ["  none in " + ", ".join(str(folder) for folder in folders)] if len(lines) == count else []
    return "\n".join(lines)


def acceptance_table(evaluation: Evaluation) -> str:
    """A line per temperature: acceptance by depth and tokens per cycle."""
    return "\n".join(
        f"  T = {found.temperature:<4g} acceptance "
        + "  ".join(
            f"{depth}: {value:.3f} ± {error:.3f}" for depth, (value, error) in enumerate(zip(found.overlap, found.errors, strict=True), 1)
        )
        + f"   {found.tokens_per_cycle:.2f} tokens/cycle"
        for found in evaluation.acceptance
    )


def _head_lines(path: Path, made: Distillation) -> list[str]:
    size = path.stat().st_size / 1e6
    vocabulary = f"{made.recipe.draft_vocab:,} ids" if made.recipe.draft_vocab else "all ids"
    head = f"  {path}  {size:,.1f} MB  for {made.model} ({made.model_digest[:12]}), {vocabulary}, {made.steps:,} steps"
    return [head, *(f"  {line}" for line in acceptance_table(made.evaluation).splitlines())]


def _hub_models() -> list[tuple[str, int]]:
    """Models in the Hugging Face cache, with their sizes in bytes."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return sorted((repo.repo_id, repo.size_on_disk) for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        return []


def _megabytes(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.glob('*') if file.is_file()) / 1e6:,.0f} MB"
