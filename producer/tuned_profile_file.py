"""Tuned profiles in the user's cache folder: one for each model, head, dtype and machine, the last one that was measured."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from producer.manifest_file import versions
from schemas.errors import DecodeError
from schemas.run_spec import RunSpec
from schemas.tuned_profile import TunedProfile
from worker.engine.model_store import cache_dir
from worker.landing import written_whole


def tuned_path(model: str, head: str, dtype: str, backend: str) -> Path:
    """Where the profile of a model digest, head digest, dtype and machine is kept; the mlx version is no part of the name.

    So a profile of another version is found, and can be called stale.
    """
    machine = "/".join(part for part in backend.split("/") if not part.startswith("mlx-"))
    key = hashlib.sha256("\n".join((model, head, dtype, machine)).encode()).hexdigest()
    return cache_dir() / "tuned" / f"{key[:32]}.json"


def write_tuned(profile: TunedProfile) -> Path:
    """Replace the profile of this model on this machine.

    Raises:
        LandingError: the cache cannot be written.
    """
    path = tuned_path(profile.model, profile.head, profile.dtype, profile.backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(f"{profile.to_json()}\n".encode())
    return path


def find_tuned(spec: RunSpec, backend: str, note: Callable[[str], None]) -> TunedProfile | None:
    """The profile that fits a run on this machine, or None; one that is stale is noted.

    Args:
        spec: the run.
        backend: name of this machine's backend class.
        note: receives a line.
    """
    if spec.drafter != "head" or spec.head is None:
        return None
    path = tuned_path(spec.model.digest, spec.head.digest, spec.profile.dtype, backend)
    try:
        profile = TunedProfile.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except DecodeError as error:
        note(f"the tuned profile {path} cannot be read ({error}); `specmill tune` writes it anew")
        return None
    then, now = f"specmill {profile.specmill} on {profile.backend}", f"specmill {versions()['specmill']} on {backend}"
    if then != now:
        note(f"the tuned profile is stale: {then} then, {now} now; `specmill tune` renews it")
        return None
    return profile
