"""`specmill run PROMPTS --out DIR`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from producer.commands.config_file import read_config
from producer.commands.long_command import LongCommand
from producer.commands.place import PLACE
from producer.commands.trust import TRUST_REMOTE_CODE
from producer.prompt_files import KINDS
from producer.run_options import DEFAULT_MODEL, ON_BAD_INPUT, RunOptions
from producer.shard_size import MOST_RECORDS
from producer.template_args import template_args_from
from schemas.errors import InputError
from schemas.profile import DTYPES, MAX_DEPTH, MAX_SLOTS, ExecutionProfile, checked_demand
from schemas.run_spec import COUPLINGS, DRAFTERS, MAX_SAMPLES, MAX_SEED, MAX_SHARD_ROWS
from schemas.sampler import SamplerConfig
from worker import BROKER_VARIABLE

SAMPLER_OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
)
CONSTRAINT_OPTIONS = ("json_schema", "regex", "grammar")


class DepthOrAuto(click.IntRange):
    """A depth, or the word `auto`."""

    def __init__(self) -> None:
        super().__init__(0, MAX_DEPTH)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`auto`, or an integer in the interval."""
        return value if value == "auto" else super().convert(value, param, ctx)


def _sampler_value(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """One sampler option, judged by `SamplerConfig` itself."""
    try:
        SamplerConfig(**{str(parameter.name): value})
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _stop_texts(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        if not text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise click.BadParameter(f"a stop string must have at least one character and be UTF-8 text; received {text!r}")
    return value


def _backend(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else checked_demand(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _template_args(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    try:
        return dict(template_args_from(value))
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def _logit_bias(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, float]:
    """`ID=BIAS` each, judged by `SamplerConfig` itself."""
    biases: dict[str, float] = {}
    for text in value:
        token, _, bias = text.partition("=")
        try:
            biases[token] = float(bias)
        except ValueError as error:
            raise click.BadParameter(f"must be ID=BIAS with a token id and a number in [-100, 100]; received {text!r}") from error
    _sampler_value(context, parameter, biases)
    return biases


def _sampler_option(name: str, kind: type, text: str) -> Callable[[Any], Any]:
    default = getattr(SamplerConfig(), name)
    return click.option(f"--{name.replace('_', '-')}", type=kind, default=default, show_default=True, callback=_sampler_value, help=text)


@click.command(cls=LongCommand, short_help="A prompts file to a Parquet dataset.")
@click.argument("prompts", type=click.Path(path_type=Path, allow_dash=True), nargs=-1, required=True)
@click.option("--out", required=True, type=PLACE, help="The dataset's folder, or s3://BUCKET/FOLDER; a run that it holds is resumed.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model: a known name, a folder, or a Hugging Face id.")
@click.option(
    "--mtp",
    metavar="HEAD",
    help="MTP head that drafts: a safetensors file, a folder that holds one, a Hugging Face id, or smollm2-mtp, which comes with specmill.",
)
@click.option("--draft-model", metavar="MODEL", help="Smaller model of the same tokenizer that drafts, named like --model.")
@click.option(
    "--coupling",
    type=click.Choice(COUPLINGS),
    default=COUPLINGS[0],
    show_default=True,
    help="shared-noise: tokens that do not depend on drafter and depth, at a little less acceptance.",
)
@click.option(
    "--drafter",
    type=click.Choice(DRAFTERS),
    show_default="what is given",
    help="Who drafts: head, model, lookup (n-grams of the row's own text), auto (lookup where it matches, else the other).",
)
@_sampler_option("temperature", float, "0 or less is greedy.")
@_sampler_option("top_p", float, "Nucleus mass in (0, 1]; 1 is off.")
@_sampler_option("top_k", int, "Most candidates kept; 0 is off.")
@_sampler_option("min_p", float, "In [0, 1]: drops tokens less probable than this share of the most probable one; 0 is off.")
@_sampler_option("presence_penalty", float, "In [-2, 2], for tokens that the completion already holds.")
@_sampler_option("frequency_penalty", float, "In [-2, 2], per earlier occurrence in the completion.")
@_sampler_option("repetition_penalty", float, "In [0.01, 100], for tokens that prompt or completion already hold; 1 is off.")
@click.option("--logit-bias", multiple=True, metavar="ID=BIAS", callback=_logit_bias, help="Added to a token's logit; may be repeated.")
@_sampler_option("min_tokens", int, "End tokens are impossible before this many; 0 is off.")
@click.option(
    "--max-tokens", type=click.IntRange(1, 1_000_000), default=RunOptions.max_tokens, show_default=True, help="Completion budget."
)
@click.option(
    "-n",
    "--n",
    "samples",
    type=click.IntRange(1, MAX_SAMPLES),
    default=1,
    show_default=True,
    help="Completions per prompt, each with its own seed.",
)
@click.option("--seed", type=click.IntRange(0, MAX_SEED), default=0, show_default=True, help="Run seed; rows are a function of it.")
@click.option("--stop", metavar="TEXT", multiple=True, callback=_stop_texts, help="Cut the completion before this text; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="End tokens end no completion; only stop strings and the budget do.")
@click.option(
    "--thinking-budget",
    type=click.IntRange(0, 1_000_000),
    metavar="TOKENS",
    help="Most tokens between a model's think tags; then the closing tag is forced.",
)
@click.option("--json-schema", metavar="FILE", help="Completions are instances of this JSON schema; a file, or the schema itself.")
@click.option("--regex", metavar="PATTERN", help="Completions match this regular expression as a whole.")
@click.option("--grammar", metavar="FILE", help="Completions are texts of this grammar, in llguidance's form of Lark; named like a schema.")
@click.option("--raw", is_flag=True, help="Encode prompts as they stand, without the chat template.")
@click.option("--logprobs", is_flag=True, help="Also store the log-probability of every token.")
@click.option(
    "--slots", type=click.IntRange(1, MAX_SLOTS), default=ExecutionProfile.slots, show_default=True, help="Rows decoded side by side (B)."
)
@click.option(
    "--depth",
    type=DepthOrAuto(),
    metavar=f"[0-{MAX_DEPTH}|auto]",
    show_default="2 with a drafter, else 0",
    help="Draft tokens per cycle (K); auto measures a few on the first prompts and freezes the fastest, 0 included.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default=ExecutionProfile.dtype, show_default=True, help="Compute dtype.")
@click.option(
    "--shard-size",
    type=click.IntRange(1, MAX_SHARD_ROWS),
    show_default=f"{MOST_RECORDS}, less where the file is small",
    help="Prompts per shard, which becomes one part file; what a stop or a crash keeps are whole shards.",
)
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True, help="Worker processes on this machine.")
@click.option(
    "--broker",
    metavar="URL",
    envvar=BROKER_VARIABLE,
    show_envvar=True,
    help="redis:// or rediss:// of a shared broker; without it an embedded one is started.",
)
@click.option(
    "--backend",
    metavar="any|same|CLASS",
    callback=_backend,
    show_default="any, or what the run that is resumed has",
    help="Whose workers may compute shards: any machine's; one class's for all shards, which the first worker decides; or those of a class "
    "as `specmill doctor` names it.",
)
@click.option("--format", type=click.Choice(KINDS), show_default="by the file's name, else jsonl", help="What PROMPTS is.")
@click.option("--id-column", metavar="COLUMN", help="Where the record id is. [default: id, custom_id, else the row number]")
@click.option("--prompt-column", metavar="COLUMN", help="Where the prompt is, such as 'turns[0]'. [default: prompt or messages]")
@click.option("--template", metavar="TEXT|@FILE", help="Make the prompt of the columns with Jinja2, such as 'Translate: {{ text }}'.")
@click.option("--system", metavar="TEXT", help="System message for every prompt that has none.")
@click.option(
    "--few-shot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Messages that go before every prompt, a JSON object with role and content per line.",
)
@click.option(
    "--per-row",
    multiple=True,
    metavar="NAME[=COLUMN]",
    help="Each row's own setting (temperature, max_tokens, n, seed, stop, …) is in this column; where it is empty, the run's counts.",
)
@click.option(
    "--chat-template-arg",
    "template_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_template_args,
    help="What the chat template is told, such as enable_thinking=false; repeatable.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many records.")
@click.option("--sample", type=click.IntRange(min=1), help="Only so many records, chosen at random by --seed, in their order.")
@click.option("--on-bad-input", type=click.Choice(ON_BAD_INPUT), default=ON_BAD_INPUT[0], show_default=True, help="What a bad line does.")
@click.option(
    "--shared",
    is_flag=True,
    help="--out lies on a disk that workers see under the same name: those started with `--shared` write their parts themselves. In an "
    "object store they always do.",
)
@TRUST_REMOTE_CODE
@click.option(
    "--priority",
    type=click.Choice(("high", "normal", "low")),
    default="normal",
    show_default=True,
    help="Against other runs of a shared broker: shards of a higher priority go first, runs of one priority share the workers.",
)
@click.option(
    "--max-error-rate",
    type=click.FloatRange(0.0, 1.0),
    default=RunOptions.max_error_rate,
    show_default=True,
    help="Stop when more than this share of the rows fails, kept bad lines aside; 1 never stops.",
)
@click.option(
    "--stall-timeout",
    type=click.FloatRange(0.0),
    default=RunOptions.stall_timeout,
    show_default=True,
    help="Seconds without a new token before an engine of this machine is killed and its shard tried again; 0 waits for ever.",
)
@click.option("--ignore-calibration", is_flag=True, help="Go on when accepted drafts contradict their acceptance probabilities.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="A TOML file with any of these options by name; what the command line gives comes first.",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve metrics for Prometheus at 127.0.0.1:PORT/metrics.")
@click.option("--dry-run", is_flag=True, help="Show three prompts as the model will see them, count, and start nothing.")
@click.option("--quiet", is_flag=True, help="No progress, only the closing summary.")
@click.pass_context
def run(context: click.Context, /, quiet: bool, dry_run: bool, prompts: tuple[Path, ...], **given: Any) -> None:
    """Turn PROMPTS into a Parquet dataset in --out.

    PROMPTS are files, quoted patterns such as 'data/*.csv', hf://datasets/… on the hub, or - for standard input: JSON lines with `prompt`
    or `messages`, OpenAI batch files, .txt (a prompt per line), .csv, .tsv and .parquet, as they are or packed with gzip, zstd, bzip2 or
    xz. Other columns are kept.
    The same command again goes on where the last one stopped. Rows that fail are kept, with their `error` filled; the exit code is 0
    all the same and the summary counts them. After Ctrl-C the exit code is 130.
    """
    options = options_from(context, prompts, given)
    check(options)
    if dry_run:
        from producer.dry_run import dry_run as look_ahead

        click.echo(look_ahead(options, lambda line: click.echo(line, err=True)))
        return
    execute(options, quiet=quiet)


def options_from(context: click.Context, prompts: tuple[Path, ...], given: dict[str, Any], **more: Any) -> RunOptions:
    """The options of a command that takes those of `run`."""
    from producer.constraint_options import constraint_from

    sampler = SamplerConfig(**{name: given.pop(name) for name in SAMPLER_OPTIONS})
    constraint = constraint_from(*(given.pop(name) for name in CONSTRAINT_OPTIONS))
    named = frozenset(name for name in context.params if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT)
    depth = given.pop("depth")
    depths = {"depth": None, "auto_depth": True} if depth == "auto" else {"depth": depth}
    named |= {"constraint"} if constraint is not None else set()
    given |= {"sampler": sampler, "constraint": constraint}
    return RunOptions(prompts=prompts[0], others=prompts[1:], given=named, **depths, **given, **more)


def check(options: RunOptions) -> None:
    """Refuse options that contradict each other.

    Raises:
        click.UsageError: names both.
    """
    if options.mtp is not None and options.draft_model is not None:
        raise click.UsageError("--mtp and --draft-model: one of them drafts; received both")
    needed = {
        "head": ("--mtp", options.mtp),
        "model": ("--draft-model", options.draft_model),
        "auto": ("--mtp or --draft-model", options.mtp or options.draft_model),
    }
    name, given = needed.get(options.resolved_drafter, ("", ""))
    if given is None and options.drafter is not None:
        raise click.UsageError(f"--drafter {options.drafter} needs {name}")
    if options.auto_depth and options.resolved_depth == 0:
        raise click.UsageError("--depth auto needs somebody who drafts: --mtp, --draft-model or --drafter lookup")
    if given is None and options.resolved_depth > 0:
        raise click.UsageError(f"--depth must be 0 without --mtp, --draft-model or --drafter lookup; received {options.depth}")
    if options.template is not None and options.prompt_column is not None:
        raise click.UsageError("--template and --prompt-column: one of them makes the prompt; received both")
    if options.raw and (options.system is not None or options.few_shot is not None or options.template_args):
        raise click.UsageError("--system, --few-shot and --chat-template-arg need the chat template; received --raw too")
    if options.workers == 0 and options.broker is None:
        raise click.UsageError("--workers 0 needs --broker: nobody else can reach the embedded broker")


def execute(options: RunOptions, *, quiet: bool) -> None:
    """Run with a display that suits the terminal, and leave with the run's exit code."""
    from producer.progress_display import make_display
    from producer.run import run as run_to_the_end

    with make_display(quiet=quiet) as display:
        summary = run_to_the_end(options, display)
    if summary is None:
        raise click.exceptions.Exit(130)
    click.echo(summary.text())
