"""`specmill tune`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from producer.commands.long_command import LongCommand
from producer.commands.trust import TRUST_REMOTE_CODE
from producer.run_options import DEFAULT_MODEL
from schemas.profile import DTYPES, MAX_DEPTH, MAX_SLOTS, ExecutionProfile
from schemas.sampler import SamplerConfig

if TYPE_CHECKING:
    from producer.tune import Measurement


def _numbers(kind: click.IntRange) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[int, ...]]:
    """What reads an option's numbers, given one by one or with commas."""

    def read(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(kind(number, parameter, context) for text in texts for number in text.split(","))

    return read


@click.command(cls=LongCommand, short_help="Find the fastest slots and depth for this machine.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model: a known name, a folder, or a Hugging Face id.")
@click.option("--mtp", metavar="FILE", help="MTP head that drafts; without one, depth is 0.")
@click.option(
    "--slots",
    metavar="B[,B]",
    multiple=True,
    default=("4,8,16,32",),
    show_default=True,
    callback=_numbers(click.IntRange(1, MAX_SLOTS)),
    help=f"Rows decoded side by side, 1 to {MAX_SLOTS}; repeatable.",
)
@click.option(
    "--depth",
    "depths",
    metavar="K[,K]",
    multiple=True,
    callback=_numbers(click.IntRange(0, MAX_DEPTH)),
    help=f"Draft tokens per cycle, 0 to {MAX_DEPTH}; repeatable.  [default: 0,1,2,3 with a head]",
)
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=64, show_default=True, help="Completion budget.")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="As in the run that it is for: acceptance depends on it.")
@click.option("--top-p", type=float, default=0.95, show_default=True, help="Likewise.")
@click.option("--dtype", type=click.Choice(DTYPES), default=ExecutionProfile.dtype, show_default=True, help="Compute dtype.")
@click.option("--prompts", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="One prompt per line.  [default: examples]")
@TRUST_REMOTE_CODE
@click.option("--json", "as_json", is_flag=True, help="The grid as JSON.")
def tune(
    model: str,
    mtp: str | None,
    slots: tuple[int, ...],
    depths: tuple[int, ...],
    max_tokens: int,
    temperature: float,
    top_p: float,
    dtype: str,
    prompts: Path | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Measure a grid of slots and depths on a few prompts and say which options are the fastest here.

    With a head, and depth 0 in the grid, the result is kept in the cache folder: `specmill run --depth auto` uses it on this machine for
    the same model, head, dtype and mlx version.

    Slots and depth belong to what a dataset is a function of on machines that are not row-invariant: choose them once, before a run.
    """
    from producer.commands.demo import examples_file
    from producer.run_plan import head_ref, model_ref
    from producer.tune import best, tuned_profile
    from producer.tune import tune as measure
    from producer.tuned_profile_file import write_tuned
    from schemas.run_spec import RunSpec

    if mtp is None and any(depths):
        raise click.UsageError(f"--depth must be 0 without --mtp; received {max(depths)}")
    if prompts is not None:
        texts = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        records = map(json.loads, examples_file().read_text(encoding="utf-8").splitlines())
        texts = [record["prompt"] for record in records if "prompt" in record]
    if not texts:
        raise click.UsageError(f"--prompts {prompts} holds no prompt")
    try:
        sampler = SamplerConfig(temperature=temperature, top_p=top_p)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    spec = RunSpec(
        run_id="tune",
        model=model_ref(model, lambda text: print(text, file=sys.stderr)),
        head=None if mtp is None else head_ref(mtp),
        sampler=sampler,
        max_tokens=max_tokens,
        stop=(),
        samples=1,
        seed=0,
        coupling="rejection",
        profile=ExecutionProfile(depth=0, dtype=dtype),
        raw=False,
        logprobs=False,
        shard_size=1,
        records=1,
        prompts_digest="",
    )
    if not as_json:
        click.echo("slots  depth    tok/s   rows/s  tokens/cycle  peak GB  acceptance by depth")
    grid = depths or ((0, 1, 2, 3) if mtp is not None else (0,))
    cells = measure(
        spec,
        texts,
        sorted(set(slots)),
        sorted(set(grid)),
        lambda cell: None if as_json else click.echo(_line(cell)),
        trust_remote_code=trust_remote_code,
    )
    fastest = best(cells)
    profile = tuned_profile(spec, cells)
    path = write_tuned(profile) if profile is not None else None
    if as_json:
        found = {"cells": [cell.to_json() for cell in cells], "best": fastest.to_json() if fastest is not None else None}
        click.echo(json.dumps({**found, "profile": str(path) if path is not None else None}))
    elif fastest is not None:
        click.echo(f"fastest: --slots {fastest.slots} --depth {fastest.depth}")
        click.echo(f"kept for --depth auto: {path}" if path is not None else "not kept for --depth auto: it needs a head, and depth 0 too")
    if fastest is None:
        raise click.exceptions.Exit(1)


def _line(cell: "Measurement") -> str:
    if cell.problem is not None:
        return f"{cell.slots:>5}  {cell.depth:>5}  failed: {cell.problem}"
    shares = " ".join(f"{share:.2f}" for share in cell.acceptance) or "-"
    numbers = f"{cell.tokens_per_second:>7.1f}  {cell.rows_per_second:>7.2f}  {cell.tokens_per_cycle:>12.2f}  {cell.peak_bytes / 1e9:>7.2f}"
    return f"{cell.slots:>5}  {cell.depth:>5}  {numbers}  {shares}"
