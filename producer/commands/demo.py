"""`specmill demo`."""

from pathlib import Path

import click

from producer.commands.long_command import LongCommand
from producer.commands.run import execute
from producer.commands.trust import TRUST_REMOTE_CODE
from producer.run_options import DEFAULT_MODEL, RunOptions
from schemas.errors import InputError
from schemas.sampler import SamplerConfig

HEAD = "smollm2-mtp"  # comes with specmill and drafts for the default model


@click.command(cls=LongCommand, short_help="The example prompts to a dataset, in one command.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("specmill-demo"),
    show_default=True,
    help="The dataset's folder.",
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model: a known name, a folder, or a Hugging Face id.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=64, show_default=True, help="Completion budget.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes.")
@TRUST_REMOTE_CODE
@click.option("--quiet", is_flag=True, help="No progress, only the closing summary.")
def demo(out: Path, model: str, max_tokens: int, workers: int, trust_remote_code: bool, quiet: bool) -> None:
    """Generate answers to the bundled example prompts with a small real model, fetched on first use (93 MB), and the head that comes with
    specmill; how many tokens it drafts at a time is measured first."""
    sampler = SamplerConfig(temperature=0.7, top_p=0.95)
    head = HEAD if model == DEFAULT_MODEL else None
    options = RunOptions(
        examples_file(),
        out,
        model=model,
        sampler=sampler,
        max_tokens=max_tokens,
        workers=workers,
        mtp=head,
        auto_depth=head is not None,
        trust_remote_code=trust_remote_code,
    )
    execute(options, quiet=quiet)


def examples_file() -> Path:
    """The example prompts, in an installed package or in a checkout.

    Raises:
        InputError: neither has them.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package, package.parent):
        if (found := folder / "examples" / "prompts.jsonl").is_file():
            return found
    raise InputError(f"the example prompts are not where they belong ({package / 'examples' / 'prompts.jsonl'}); install specmill again")
