"""`fetch_snapshot` and `fetch_head`: a model, or only what holds its MTP head, from the Hugging Face hub or its cache on this disk."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.errors import ModelError
from worker.engine.smollm2 import Report

WEIGHTS = ("model*.safetensors", "mtp*.safetensors", "mtp/*.safetensors")
PATTERNS = ("*.json", "*.jinja", "*.txt", "*.tiktoken", "tokenizer.model", "*.py", *WEIGHTS)
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
HEAD_TENSOR = re.compile(r"(^|\.)mtp(_layers)?\.|\beh_proj\.|^(pre_fc_norm_|token_layernorm|ne\.weight)")  # one that only a head has
DEEPSEEK_LAYER = re.compile(r"(model\.layers\.\d+\.)eh_proj\.")  # whose whole layer belongs to the head
SECONDS_BETWEEN = 10.0  # two lines of progress, where they cannot be redrawn in place


def fetch_snapshot(repo: str, revision: str | None, offline: bool, report: Report) -> Path:
    """The snapshot folder of a model, downloaded when it is not in the hub's own cache; a download that broke off goes on.

    Args:
        repo: `owner/name`.
        revision: branch, tag or commit; None is the newest.
        offline: never touch the network.
        report: receives a line per step; on a terminal the hub's own bars come on top.

    Raises:
        ModelError: no such model, or it cannot be downloaded; the message says what to do.
    """
    return _download(repo, revision, PATTERNS, offline, report)


def fetch_head(repo: str, revision: str | None, sidecars: Sequence[str], offline: bool, report: Report) -> Path:
    """The snapshot folder of a model as far as it holds its MTP head: a sidecar file, else those weight files that the index says.

    Args:
        repo: `owner/name`.
        revision: branch, tag or commit; None is the newest.
        sidecars: names of files that hold nothing but a head.
        offline: never touch the network.
        report: receives a line per step.

    Raises:
        ModelError: no such model, or it cannot be downloaded; the message says what to do.
    """
    folder = _download(repo, revision, (CONFIG, INDEX, *sidecars), offline, report)
    named = named_head_file(folder)
    if named is not None:
        return _download(repo, revision, (named,), offline, report)
    if any((folder / name).is_file() for name in sidecars):
        return folder
    files = sorted(_head_shards(folder / INDEX)) if (folder / INDEX).is_file() else [SINGLE]
    return _download(repo, revision, files, offline, report) if files else folder


def named_head_file(folder: Path) -> str | None:
    """The head file that a model's config.json names, if any."""
    try:
        return str(json.loads((folder / CONFIG).read_text(encoding="utf-8"))["mlx_lm_extra_tensors"]["mtp_file"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _head_shards(index: Path) -> set[str]:
    """The weight files that hold a tensor of a head, by a model's index."""
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        layers = tuple({found[1] for name in names if (found := DEEPSEEK_LAYER.match(name))})
        return {file for name, file in names.items() if HEAD_TENSOR.search(name) or name.startswith(layers)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a weight index: {error!r}") from error


def _download(repo: str, revision: str | None, patterns: Sequence[str], offline: bool, report: Report) -> Path:
    """The snapshot folder, with every file that matches a pattern."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    report(f"looking for {repo}" + (" in the local Hugging Face cache" if offline else " on the Hugging Face hub"))
    bars = None if sys.stderr.isatty() else _lines_instead_of_bars(report)
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns), local_files_only=offline, tqdm_class=bars))
    except RepositoryNotFoundError as error:
        raise ModelError(f"the hub has no model {repo} that you may read; a private or gated one needs `hf auth login` first") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"the model {repo} has no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        why = "the network is off" if offline else "the hub could not be reached"
        raise ModelError(
            f"{repo} is not on this disk and {why}: run the same command again with a network, or give a local model folder"
        ) from error
    except Exception as error:  # the hub passes on whatever its HTTP library raises
        raise ModelError(f"cannot download {repo} ({type(error).__name__}: {error}); the same command again goes on with it") from error


def _lines_instead_of_bars(report: Report) -> Any:
    """A class like tqdm whose bars come as plain lines, seldom."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Lines(tqdm):  # type: ignore[misc]  # tqdm has no types of its own
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)  # the hub's own addition
            super().__init__(*args, **{**options, "mininterval": SECONDS_BETWEEN, "maxinterval": SECONDS_BETWEEN, "delay": SECONDS_BETWEEN})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002 # tqdm's signature
            if self.n:
                report(str(self) if msg is None else msg)

    return Lines
