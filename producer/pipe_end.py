"""`ending_with_the_reader`: a command that only prints ends like other Unix tools when nobody reads it any more: by SIGPIPE, silently."""

import contextlib
import os
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ending_with_the_reader() -> Iterator[None]:
    """End the process where a write in the block finds its reader gone; everything inside the block has been left in order by then.

    Python ignores SIGPIPE, and with reason: with the signal's own action, a lost connection to the broker would end us as well.
    """
    try:
        yield
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
