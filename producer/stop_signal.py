"""`StopSignal`: Ctrl-C and SIGTERM as a wish to stop, and the second one as an order."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130  # what shells report for a command that Ctrl-C ended


class StopSignal:
    """A context in the main thread; call it to ask whether to stop.

    The second signal leaves at once: part files are whole or absent, and broker and workers notice that their parent is gone.
    """

    def __init__(self, on_stop: Callable[[], None], on_leave: Callable[[], None] = lambda: None) -> None:
        """Args.

        Args:
            on_stop: called once, from the first call that answers True, never from a signal handler.
            on_leave: called from the signal handler before the process leaves.
        """
        self._on_stop = on_stop
        self._on_leave = on_leave
        self._wished = False
        self._said = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Whether to stop."""
        if self._wished and not self._said:
            self._said = True
            self._on_stop()
        return self._wished

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._wished:
            self._on_leave()
            os._exit(EXIT_CODE)
        self._wished = True
