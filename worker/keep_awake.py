"""`KeepAwake`: a Mac does not fall asleep while it holds a shard."""

import logging
import os
import subprocess
import sys
from typing import Self

logger = logging.getLogger(__name__)


class KeepAwake:
    """A context inside which `caffeinate` runs; elsewhere than on macOS it does nothing.

    `-i` prevents idle sleep only: a closed lid still sleeps, and the lease is what deals with that. `-w` ends caffeinate with this process
    however it ends.
    """

    def __init__(self, platform: str = sys.platform) -> None:
        self._wanted = platform == "darwin"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._wanted:
            try:
                self._process = subprocess.Popen(
                    ["caffeinate", "-i", "-w", str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
            except OSError as error:
                self._wanted = False
                logger.warning("this machine may fall asleep during a shard: caffeinate does not start (%s)", error)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
