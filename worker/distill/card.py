"""A head's card: what it is, how it was made and how often its drafts are accepted, as Markdown."""

from worker.distill.cycle_time import SLOTS
from worker.distill.distillation import Distillation
from worker.distill.evaluation_record import Evaluation


def card_text(name: str, made: Distillation, cycle_seconds: dict[int, float]) -> str:
    """The card of the head of this file name.

    Args:
        name: the file's name.
        made: what the file says of itself.
        cycle_seconds: per size of `made.vocabularies`, what `worker.distill.cycle_time` measured here.
    """
    recipe = made.recipe
    depths = range(1, recipe.depth + 1)
    trained = ", ".join(made.sources)
    lines = [
        f"# {name}",
        "",
        f"An MTP head that drafts for `{made.model}` (digest `{made.model_digest[:12]}`), trained by `specmill distill`. Drafts change",
        "how fast the model answers, never what it would have said.",
        "",
        f"    specmill run PROMPTS --out DIR --model {made.model} --mtp {name} --depth {recipe.depth}",
        "",
        "## Acceptance on held-out rows",
        "",
        f"{made.evaluation.rows:,} rows that were not trained on, {made.evaluation.positions:,} positions. At every position Σ min(p, q),",
        "p over the whole vocabulary, earlier drafts the text's own, no filters; ± one standard error between rows. At temperature 0",
        "it is the share of equal choices. Tokens per cycle are the mean over cycles that begin anywhere in the text.",
        "",
        "| temperature | " + " | ".join(f"depth {k}" for k in depths) + f" | tokens per cycle, K = {recipe.depth} | untrained, depth 1 |",
        "|---|" + "---|" * (recipe.depth + 2),
        *_acceptance_rows(made.evaluation, made.untrained),
        "",
    ]
    if made.replayed_tokens_per_cycle is not None:
        lines += [
            f"Decoding the held-out rows with this head at their own temperature, {made.sampled_at:g}, is expected to take one cycle per "
            f"{made.replayed_tokens_per_cycle:.3f} tokens.",
            "",
        ]
    lines += [
        "## Draft vocabulary",
        "",
        f"The head drafts {_size(recipe.draft_vocab)}, chosen by their frequency in the training answers. The trunk gives them "
        f"{made.evaluation.mass:.2%} of its probability. With fewer, at temperature 1:",
        "",
        "| ids | mass | depth 1 | tokens per cycle | a cycle | tokens per second |",
        "|---|---|---|---|---|---|",
        *_vocabulary_rows(made, cycle_seconds),
        "",
        f"A cycle is that of {SLOTS} rows on the machine that trained the head, sampling not counted. By tokens per second, best are",
        f"{_fastest(made, cycle_seconds):,} ids.",
        "",
        "## How it was made",
        "",
        f"- data: {trained}; {made.rows:,} rows with {made.answer_tokens:,} answer tokens to train on,",
        f"  {made.skipped:,} rows left out (failed or too short); digest `{made.corpus_digest[:12]}`",
        f"- training: {made.steps:,} of {recipe.steps:,} steps, {recipe.batch_tokens:,} positions each, unrolled to depth {recipe.depth}, "
        f"AdamW {recipe.learning_rate:g}; it ended because {made.ending}",
        *([f"- it started from the head with sha256 `{made.init[:12]}`, named in the command"] if made.init is not None else []),
        "- the same head again:" if made.whole else "- it was cut short with `--finish`; the whole training:",
        "",
        f"      {made.command}",
        "",
        "| step | passes | training loss | " + " | ".join(f"depth {k}" for k in depths) + " | tokens per cycle |",
        "|---|---|---|" + "---|" * (recipe.depth + 1),
        *(
            f"| {point.step:,} | {point.epoch:.1f} | {point.loss:.3f} | "
            + " | ".join(f"{value:.3f}" for value in point.overlap)
            + f" | {point.tokens_per_cycle:.3f} |"
            for point in made.points
        ),
        "",
        "The curve is taken at temperature 1 on some of the held-out rows; the best point is what was kept.",
        "",
    ]
    return "\n".join(lines)


def _acceptance_rows(evaluation: Evaluation, untrained: Evaluation) -> list[str]:
    return [
        f"| {found.temperature:g} | "
        + " | ".join(f"{value:.3f} ± {error:.3f}" for value, error in zip(found.overlap, found.errors, strict=True))
        + f" | {found.tokens_per_cycle:.3f} | {untrained.at(found.temperature).overlap[0]:.3f} |"
        for found in evaluation.acceptance
    ]


def _vocabulary_rows(made: Distillation, cycle_seconds: dict[int, float]) -> list[str]:
    return [
        f"| {choice.size:,} | {choice.mass:.2%} | {choice.overlap[0]:.3f} | {choice.tokens_per_cycle:.3f} "
        f"| {1000 * cycle_seconds[choice.size]:.1f} ms | {SLOTS * choice.tokens_per_cycle / cycle_seconds[choice.size]:.1f} |"
        for choice in made.vocabularies
    ]


def _fastest(made: Distillation, cycle_seconds: dict[int, float]) -> int:
    return max(made.vocabularies, key=lambda choice: choice.tokens_per_cycle / cycle_seconds[choice.size]).size


def _size(draft_vocab: int) -> str:
    return f"{draft_vocab:,} ids" if draft_vocab else "the whole vocabulary"
