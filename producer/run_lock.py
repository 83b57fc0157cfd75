"""`RunLock`: one coordinator per output folder, by flock on `OUT/.specmill/lock`; the kernel frees it when the holder dies."""

import contextlib
import fcntl
import os
import shutil
import time
from typing import Self

from producer.local_side import local_side
from schemas.errors import SpecmillError
from worker.part_names import LOG
from worker.remote_path import Place, RemotePath

SCRATCH = ".specmill"  # the broker's folder, the workers' output and the lock; gone after a completed run
PATIENCE_SECONDS = 0.5  # `is_held` holds the lock for an instant


class RunLock:
    """Held as a context from before the broker starts until after it has ended."""

    def __init__(self, out: Place) -> None:
        self.folder = local_side(out) / SCRATCH
        self._out = out
        self._path = self.folder / "lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        """Take the lock, making `OUT` when needed.

        Raises:
            SpecmillError: another process writes to this folder.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(file)
                if time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                raise SpecmillError(f"another specmill run writes to {self._out}; wait for it or give another --out") from error
            # The holder before us may have removed the folder between our open and our lock.
            if self._path.exists() and os.fstat(file).st_ino == self._path.stat().st_ino:
                self._file = file
            else:
                os.close(file)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the scratch folder and let go."""
        if self._file is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            if isinstance(self._out, RemotePath):
                with contextlib.suppress(OSError):  # a journal that could not become Parquet stays
                    (self.folder.parent / LOG).rmdir()
                    self.folder.parent.rmdir()
            os.close(self._file)
            self._file = None


def is_held(out: Place) -> bool:
    """Whether a session works in this folder, on this machine, now."""
    try:
        file = os.open(local_side(out) / SCRATCH / "lock", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
