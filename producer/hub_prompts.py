"""`hf://datasets/owner/name…`: prompts that lie on the Hugging Face hub, fetched by the hub's own library."""

from pathlib import Path
from typing import Any

from schemas.errors import InputError

SCHEME = "hf:"


def hub_url(path: Path) -> str | None:
    """The address that a path on the command line means, or None where it is a path of this machine."""
    return f"hf://{'/'.join(path.parts[1:])}" if path.parts[:1] == (SCHEME,) else None


def fetch_files(url: str, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of an address, in the hub's cache on this disk, in the order of their names.

    Args:
        url: a file, a pattern, a folder, or a whole dataset, at `@revision` where it is named.
        suffixes: what the names of files end in that are taken out of a folder.

    Raises:
        InputError: there are none, or the hub cannot be reached.
    """
    from huggingface_hub import HfFileSystem, hf_hub_download

    try:
        hub: Any = HfFileSystem()
        found = sorted(map(str, hub.glob(url) if "*" in url else [url]))
        if len(found) == 1 and hub.isdir(found[0]):
            found = sorted(name for name in map(str, hub.find(found[0])) if name.endswith(suffixes))
        places: list[Any] = [hub.resolve_path(name) for name in found]
        files = [Path(hf_hub_download(at.repo_id, at.path_in_repo, repo_type="dataset", revision=at.revision)) for at in places]
    except Exception as error:  # the hub passes on whatever its HTTP library raises
        raise InputError(f"cannot read {url}: {first_line(error)}; a private dataset needs `hf auth login` first") from error
    if not files:
        raise InputError(f"no file matches {url}")
    return files


def name_of(path: Path) -> str:
    """What people call a file of prompts."""
    return hub_url(path) or str(path)


def first_line(error: Exception) -> str:
    """What to tell of an error of the hub's library."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
