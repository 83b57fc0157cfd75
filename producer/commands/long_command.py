"""`LongCommand`: a command whose work is worth more than its messages: it goes on when nobody reads them any more."""

from typing import Any

import click

from worker.patient_output import outliving_readers


class LongCommand(click.Command):
    """A command that outlives the readers of its output."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        with outliving_readers():
            return super().invoke(ctx)


class LongGroup(click.Group):
    """A group of such commands, or one with work of its own."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        with outliving_readers():
            return super().invoke(ctx)
