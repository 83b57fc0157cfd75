"""`specmill distill DATASET... --model M --out HEAD`."""

from pathlib import Path
from typing import Any

import click

from producer.commands.long_command import LongCommand
from producer.commands.trust import TRUST_REMOTE_CODE
from producer.run_options import DEFAULT_MODEL
from schemas.profile import DTYPES, MAX_DEPTH
from schemas.run_spec import MAX_SEED
from worker.distill.recipe import Recipe


@click.command(cls=LongCommand, short_help="Train an MTP head from a model's own rows.")
@click.argument("sources", metavar="DATASET...", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="The model to draft for, named as for `specmill run`.")
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The head's file, NAME.safetensors.")
@click.option(
    "--init",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="HEAD",
    help="Start from a head that specmill trained for this model, and keep its draft vocabulary, not from the model's last layer.",
)
@click.option("--minutes", type=click.FloatRange(0.0, min_open=True), help="Train about so long, reading not counted.  [default: 30]")
@click.option("--steps", type=click.IntRange(1), help="Train exactly so many steps instead; this makes a head reproducible.")
@click.option("--depth", type=click.IntRange(1, MAX_DEPTH), default=Recipe.depth, show_default=True, help="Depths that are unrolled.")
@click.option("--draft-vocab", type=click.IntRange(0), default=Recipe.draft_vocab, show_default=True, help="Ids it may draft; 0: all.")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), default=Recipe.seed, show_default=True, help="Of the split and the batches.")
@click.option("--learning-rate", type=float, default=Recipe.learning_rate, show_default=True, help="Highest one.")
@click.option("--warmup", type=float, default=Recipe.warmup, show_default=True, help="Share of the steps over which it rises.")
@click.option("--weight-decay", type=float, default=Recipe.weight_decay, show_default=True, help="AdamW's.")
@click.option("--clip", type=float, default=Recipe.clip, show_default=True, help="Largest norm of the gradient.")
@click.option("--depth-decay", type=float, default=Recipe.depth_decay, show_default=True, help="Weight of a depth relative to the last.")
@click.option(
    "--overlap-weight", type=float, default=Recipe.overlap_weight, show_default=True, help="Share of the loss that is Σ min(p, q)'s."
)
@click.option("--hidden-weight", type=float, default=Recipe.hidden_weight, show_default=True, help="Of the regression onto hidden states.")
@click.option("--batch-tokens", type=int, default=Recipe.batch_tokens, show_default=True, help="Positions of one step.")
@click.option("--held-out", type=float, default=Recipe.held_out, show_default=True, help="Share of the records never trained on.")
@click.option("--context", type=int, default=Recipe.context, show_default=True, help="Longer rows are cut to so many tokens.")
@click.option("--evaluations", type=int, default=Recipe.evaluations, show_default=True, help="Points of the learning curve.")
@click.option("--patience", type=int, default=Recipe.patience, show_default=True, help="Evaluations without a better one before it ends.")
@click.option("--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True, help="Compute dtype of the model.")
@click.option("--stored", type=click.Choice(("float16", "bfloat16", "float32")), default="float16", show_default=True, help="Of the file.")
@click.option("--finish", is_flag=True, help="Train no further: write the best head of the checkpoint.")
@TRUST_REMOTE_CODE
@click.option("--quiet", is_flag=True, help="No progress, only the closing table.")
def distill(
    sources: tuple[Path, ...],
    model: str,
    out: Path,
    init: Path | None,
    minutes: float | None,
    steps: int | None,
    dtype: str,
    stored: str,
    finish: bool,
    trust_remote_code: bool,
    quiet: bool,
    **recipe: Any,
) -> None:
    """Train a head that drafts for --model from DATASETs, folders that `specmill run` made with that model, and write it to --out.

    The model reads its own rows once; what it computed is cached on the disk. The head learns the model's next-token distribution, drafting
    on its own drafts up to --depth. The same command again goes on where the last one stopped; Ctrl-C leaves a checkpoint beside --out and
    exit code 130. A card, NAME.md, says how often drafts are accepted on held-out rows and how to train the same head again. With --init a
    head learns on from new rows, or from the same rows at another depth.
    """
    if minutes is not None and steps is not None:
        raise click.UsageError("--minutes and --steps: one of them ends the training; received both")
    if out.suffix != ".safetensors":
        raise click.BadParameter(f"must end in .safetensors; received {out}", param_hint="'--out'")
    try:
        wanted = Recipe(steps=steps or 1, **recipe)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    from worker.engine import blas

    blas.prepare()  # before mlx is imported
    from producer.head_training import TrainingOptions
    from producer.head_training import distill as train_head
    from producer.model_list import acceptance_table
    from producer.step_display import make_step_display
    from producer.stop_signal import EXIT_CODE, StopSignal

    if steps is None and minutes is None:
        minutes = 30.0
    options = TrainingOptions(sources, model, out, wanted, minutes, dtype, stored, finish, init, trust_remote_code)
    with (
        make_step_display(quiet=quiet) as display,
        StopSignal(lambda: display.note("stopping; the same command goes on from here"), display.close) as stop,
    ):
        made = train_head(options, display, stop)
    if made is None:
        raise click.exceptions.Exit(EXIT_CODE)
    click.echo(f"{out}: {made.steps:,} steps, card in {out.with_suffix('.md')}")
    click.echo(acceptance_table(made.evaluation))
