"""`PlainConsole`: rich's console, without its own idea of what a broken pipe means."""

import errno

from rich.console import Console


class PlainConsole(Console):
    """A console for commands that print and end."""

    def on_broken_pipe(self) -> None:
        """Leave it to `producer.pipe_end`.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")
