"""The folder of this machine that goes with a dataset: the dataset's own folder, or one in the cache for a dataset in an object store.

There lie the session's lock, its embedded broker and its journal, none of which an object store can hold.
"""

import hashlib
from pathlib import Path

from worker.part_names import LOG
from worker.remote_path import Place, RemotePath

SESSIONS = "sessions"


def local_side(out: Place) -> Path:
    """The folder, which need not exist; the same for the same dataset, as long as the cache stays."""
    if isinstance(out, RemotePath):
        from worker.engine.model_store import cache_dir  # it imports the model's side, which `specmill status` does without

        return cache_dir() / SESSIONS / hashlib.sha256(str(out).encode()).hexdigest()[:16]
    return out


def journal_folder(out: Place) -> Path:
    """Where sessions of this machine write down their attempts before they become Parquet."""
    return local_side(out) / LOG
