"""`TRUST_REMOTE_CODE`: the option of every command that loads a model."""

import click

TRUST_REMOTE_CODE = click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run code that comes with a model, here; workers elsewhere need the option too. Never done without it.",
)
