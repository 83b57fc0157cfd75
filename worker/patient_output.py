"""`outliving_readers`: standard output and standard error that survive whoever read them.

`specmill run … 2>&1 | head` must not end a run, and a worker must not die with the terminal that it was started in. What is written after
the reader has left is dropped.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

GONE = (errno.EPIPE, errno.EIO)  # a pipe that nobody reads, a terminal that was closed
STREAMS = ("stdout", "stderr")


class _Patient(io.FileIO):
    """A descriptor that becomes the null device when its reader leaves, for this process and whatever it starts later."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # whatever buffer the layer above hands down
        except OSError as error:
            if error.errno not in GONE:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return memoryview(data).nbytes  # type: ignore[arg-type]


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` until the block ends; streams without a descriptor stay as they are."""
    before = {name: getattr(sys, name) for name in STREAMS}
    for name, stream in before.items():
        if (patient := _patient(stream)) is not None:
            setattr(sys, name, patient)
    try:
        yield
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)


def _patient(stream: io.TextIOWrapper) -> io.TextIOWrapper | None:
    try:
        stream.flush()
        raw = _Patient(stream.fileno(), "wb", closefd=False)
    except (AttributeError, io.UnsupportedOperation):
        return None
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True)
