"""`specmill`: the command group. Nothing heavy is imported before a command is at work, so that `--help` answers at once."""

import errno
from typing import Any

import click

from producer.commands.demo import demo
from producer.commands.diff import diff
from producer.commands.distill import distill
from producer.commands.doctor import doctor
from producer.commands.export import export
from producer.commands.fleet import cancel, pause, resume, status
from producer.commands.manifest import manifest
from producer.commands.model import model
from producer.commands.monitor import monitor
from producer.commands.push import push
from producer.commands.report import report
from producer.commands.rerun import rerun
from producer.commands.run import run
from producer.commands.show import show
from producer.commands.submit import submit
from producer.commands.tune import tune
from producer.commands.verify import verify
from producer.commands.watch import watch
from producer.commands.worker import worker
from producer.pipe_end import ending_with_the_reader
from producer.stop_signal import EXIT_CODE
from schemas.errors import SpecmillError

SECTIONS = {
    "Make a dataset": (run, demo, rerun),
    "Use several machines": (submit, worker, watch, status, pause, resume, cancel, monitor),
    "Look at a dataset": (report, show, export, push, diff, manifest),
    "Trust and speed": (verify, doctor, tune),
    "Models": (model, distill),
}
"""The commands as `--help` lists them."""


class Group(click.Group):
    """A group that shows specmill's own errors as one message and never as a traceback."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Also where `--help` and `--version` print."""
        with ending_with_the_reader():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what specmill refuses to do becomes `Error: …` and exit code 1."""
        try:
            with ending_with_the_reader():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            click.echo("stopped; nothing is half written, and the same command starts again from what is there", err=True)
            raise click.exceptions.Exit(EXIT_CODE) from error
        except SpecmillError as error:
            raise click.ClickException(str(error) or type(error).__name__) from error
        except OSError as error:  # a full disk, a folder that may not be written
            raise click.ClickException(_sentence(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 # click's signature
        """List the commands by what they are for."""
        width = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            rows = [(f"{command.name or '':<{width}}", command.get_short_help_str(limit=100)) for command in commands]
            with formatter.section(title):
                formatter.write_dl(rows)


def _sentence(error: OSError) -> str:
    """What the system refused, and what to do about it where that is known."""
    what = f"cannot use {error.filename}" if error.filename is not None else "the system refuses"
    advice = {
        errno.ENOSPC: "free some space, and the same command goes on",
        errno.EDQUOT: "free some space, and the same command goes on",
        errno.EACCES: "give a place that you may read and write",
        errno.EPERM: "give a place that you may read and write",
        errno.EROFS: "give a place that can be written",
        errno.EMFILE: "raise the limit (ulimit -n), and give the command again",
    }.get(error.errno or 0)
    return f"{what}: {(error.strerror or str(error)).lower()}" + (f"; {advice}" if advice else "")


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="specmill")
def main() -> None:
    """Exact, reproducible datasets from a file of prompts, with a language model's own multi-token-prediction heads."""


for _command in (command for commands in SECTIONS.values() for command in commands):
    main.add_command(_command)

if __name__ == "__main__":
    main(prog_name="specmill")
