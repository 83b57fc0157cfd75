"""Where models are: from what a user writes after `--model` or `--mtp` to files on this disk, and the digests of those files.

Nothing here imports mlx, so the coordinator may resolve and digest a model that only its workers load.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from schemas.errors import HeadError, ModelError
from schemas.wire import canonical_json
from worker.engine import smollm2
from worker.engine.hub import HEAD_TENSOR, fetch_head, fetch_snapshot, named_head_file
from worker.engine.smollm2 import Report, silent
from worker.engine.step_report import StepReport

SMOLLM2 = "smollm2-135m"
SHIPPED_HEADS = Path(__file__).parents[1] / "heads"
"""Heads that come with specmill, each with a card: NAME.safetensors for `--mtp NAME`."""
HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
HEAD_FILES = ("mtp.safetensors", "model-mtp.safetensors", "mtp/weights.safetensors")
DIGESTED = (
    "config.json",
    "generation_config.json",  # its end tokens decide where a row stops
    "*.safetensors",
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "merges.txt",
    "chat_template*",
    "*.py",  # runs only with --trust-remote-code, and then it is part of the model
)
DIGEST_CACHE_VERSION = 1
DIGEST_BLOCK = 4 << 20  # bytes read at a time
SMALL_FILE = 1 << 20  # bytes; below this, hashing costs less than a look into the digest cache


def cache_dir() -> Path:
    """$SPECMILL_CACHE, else the platform's cache folder of this user; it need not exist yet."""
    if chosen := os.environ.get("SPECMILL_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specmill"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "specmill"


def resolve_model(reference: str, *, offline: bool = False, report: Report = silent) -> Path:
    """The folder of a model that mlx-lm can load.

    Args:
        reference: `smollm2-135m`, a local folder, or a Hugging Face id `owner/name`, with `@revision` if wanted. What is a path that
            exists is taken as a path.
        offline: never touch the network; what is not on this disk is an error.
        report: receives one line of plain text per step of a download.

    Raises:
        ModelError: no such model, a folder that lacks something, or a download that failed; the message says what to do.
    """
    local = Path(reference).expanduser()
    if reference and local.exists():
        return _checked(local)
    if reference == SMOLLM2:
        return _checked(_smollm2(offline, report))
    hub_id = HUB_ID.fullmatch(reference)
    if hub_id is None or reference.startswith("."):
        raise ModelError(
            f"no model {reference!r}: it must be {SMOLLM2}, a local folder with a config.json, or a Hugging Face id like owner/name; "
            f"no folder of that name is here ({Path.cwd()})"
        )
    return _checked(fetch_snapshot(hub_id["repo"], hub_id["revision"], offline, report))


def resolve_head(reference: str, *, offline: bool = False, report: Report = silent) -> Path:
    """The safetensors file of an MTP head, or the model folder whose own weights include one.

    Args:
        reference: the name of a head that comes with specmill; or a local safetensors file, or a folder that holds one under one of the
            usual names (`HEAD_FILES`), under the name that its config.json gives as `mlx_lm_extra_tensors.mtp_file`, or among its model's
            weights; or a Hugging Face id `owner/name`, with `@revision` if wanted, of such a folder, of which no more is fetched than
            what holds the head.
        offline: never touch the network; what is not on this disk is an error.
        report: receives one line of plain text per step of a download.

    Raises:
        HeadError: nothing there, or not a safetensors file.
    """
    path = Path(reference).expanduser()
    shipped = SHIPPED_HEADS / f"{reference}.safetensors"
    if shipped.parent == SHIPPED_HEADS and shipped.is_file() and not path.exists():
        return shipped
    hub_id = HUB_ID.fullmatch(reference)
    if not path.exists() and hub_id is not None and path.suffix != ".safetensors" and not reference.startswith("."):
        try:
            path = fetch_head(hub_id["repo"], hub_id["revision"], HEAD_FILES, offline, report)
        except ModelError as error:
            raise HeadError(str(error)) from error
    if path.is_dir():
        named = named_head_file(path)
        candidates = [path / name for name in ((named,) if named is not None else ()) + HEAD_FILES]
        found = [candidate for candidate in candidates if candidate.is_file()]
        if not found:
            if head_files(path):
                return path
            raise HeadError(f"{path} holds no MTP head: expected one of {', '.join(HEAD_FILES)}, or weights that include one")
        path = found[0]
    elif not path.is_file():
        raise HeadError(
            f"no MTP head at {path}: it must be a safetensors file, a folder that holds one of {', '.join(HEAD_FILES)}, "
            "or a Hugging Face id like owner/name"
        )
    if not _is_safetensors(path):
        raise HeadError(f"{path} is not a safetensors file")
    return path


def head_files(path: Path) -> list[Path]:
    """The files that hold a head: the file itself, or those of a model folder with tensors of an MTP head."""
    if path.is_file():
        return [path]
    return [file for file in sorted(path.glob("*.safetensors")) if any(HEAD_TENSOR.search(name) for name in _tensor_names(file))]


def digest_head(path: Path) -> dict[str, str]:
    """sha256 in hex of every file that holds the head, by file name."""
    return {file.name: digest_file(file) for file in head_files(path)}


def digest_file(path: Path, report: Report = silent) -> str:
    """The sha256 of a file in hex; that of a big file is remembered until its size or its time of change differs.

    Args:
        path: the file.
        report: receives a line now and then while a huge one is read.
    """
    path = Path(path)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size < SMALL_FILE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        key = os.path.realpath(path)
        stamp = [status.st_size, status.st_mtime_ns]
        known = _read_digest_cache().get(key)
        if known is not None and known[:2] == stamp:
            return str(known[2])
        digest = _digest(file, path.name, status.st_size, report)
    _remember_digest(key, [*stamp, digest])
    return digest


def digest_folder(path: Path, report: Report = silent) -> dict[str, str]:
    """sha256 in hex of every file of a model folder that can change its rows: config, weights, tokenizer, chat template; by file name."""
    names = {found.name for pattern in DIGESTED for found in Path(path).glob(pattern) if found.is_file()}
    return {name: digest_file(Path(path) / name, report) for name in sorted(names)}


def _digest(file: BinaryIO, name: str, size: int, report: Report) -> str:
    step, digest, done = StepReport(report, f"checking {name}", size / 1e6, "MB"), hashlib.sha256(), 0
    while block := file.read(DIGEST_BLOCK):
        digest.update(block)
        done += len(block)
        step.at(done / 1e6)
    return digest.hexdigest()


def combined_digest(digests: dict[str, str]) -> str:
    """One sha256 in hex over names and digests, whatever their order."""
    return hashlib.sha256(canonical_json(dict(digests)).encode()).hexdigest()


def _smollm2(offline: bool, report: Report) -> Path:
    """The cached folder of the small real model, fetched once however many processes ask at the same time."""
    target = cache_dir() / "models" / SMOLLM2
    if target.is_dir():
        return target
    if offline:
        raise ModelError(f"{SMOLLM2} is not in {target.parent} and the network is off: run `specmill model fetch {SMOLLM2}` with a network")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target.with_name(f"{SMOLLM2}.lock"), report):
            if not target.is_dir():  # another process may have fetched it while this one waited
                for leftover in target.parent.glob(f".{SMOLLM2}-*"):  # of a process that was killed
                    shutil.rmtree(leftover)
                smollm2.fetch(target, report=report)
    except OSError as error:
        raise ModelError(f"cannot write to the model cache {target.parent} ({error}); set SPECMILL_CACHE to another folder") from error
    return target


def _checked(folder: Path) -> Path:
    """The folder itself, if it has what mlx-lm needs."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is a file; a model is a folder with config.json, model*.safetensors and a tokenizer")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no model folder: it has no config.json")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{folder / 'config.json'} must be a JSON object with a model_type")
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(f"{folder} holds no model*.safetensors; convert the weights with `python -m mlx_lm convert` first")
    if missing := _missing_shards(folder):
        raise ModelError(f"{folder} lacks {len(missing)} of the weight files that its index names, first {missing[0]}; download it again")
    if not any(found for pattern in TOKENIZER_FILES for found in folder.glob(pattern)):
        raise ModelError(f"{folder} holds no tokenizer: expected one of {', '.join(TOKENIZER_FILES)}")
    return folder


def _missing_shards(folder: Path) -> list[str]:
    """Names of weight files that the folder's index lists and the folder does not have."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a weight index: {error!r}") from error
    return sorted(name for name in names if not (folder / name).is_file())


def _is_safetensors(path: Path) -> bool:
    """Whether a file starts like safetensors: the length of a JSON header in eight bytes, then the header."""
    return _safetensors_header(path) is not None


def _tensor_names(path: Path) -> list[str]:
    return list(_safetensors_header(path) or {})


def _safetensors_header(path: Path) -> dict[str, object] | None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            return None
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return None
    return header if isinstance(header, dict) else None


@contextlib.contextmanager
def _exclusive(path: Path, report: Report) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is fetching the model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest_cache_file() -> Path:
    return cache_dir() / "digests.json"


def _read_digest_cache() -> dict[str, list[int | str]]:
    """Real path → [size, mtime_ns, sha256]; whatever cannot be read counts as empty."""
    try:
        data = json.loads(_digest_cache_file().read_text(encoding="utf-8"))
        if data["v"] != DIGEST_CACHE_VERSION:
            return {}
        files = data["files"]
        return {key: value for key, value in files.items() if isinstance(value, list) and [type(item) for item in value] == [int, int, str]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remember_digest(key: str, entry: list[int | str]) -> None:
    """Add an entry to the digest cache; files that are gone leave it. A cache that cannot be written costs time, not the run."""
    target = _digest_cache_file()
    files = {known: value for known, value in _read_digest_cache().items() if Path(known).exists()}
    files[key] = entry
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=".digests-", delete=False) as file:
            json.dump({"v": DIGEST_CACHE_VERSION, "files": files}, file, indent=1)
        shutil.move(file.name, target)
