"""What teacher forcing can say against one dataset row: everything but its draws and its acceptance counts.

A pass on other hardware rounds differently, so numbers are compared within `Tolerance`, and a token just outside the kept candidates is an
edge case and no forgery.
"""

import math
from dataclasses import dataclass
from typing import Any

from schemas.run_spec import RunSpec

INPUT_ERRORS = ("BadInputError", "TemplateError", "EmptyPromptError", "PromptTooLongError")
_PER_TOKEN = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}  # nats; ten times what two backends were seen to differ by on average
_EDGE = {"float32": 2e-3, "float16": 2e-2, "bfloat16": 1e-1}  # nats
_FILTER_FLIP = 0.1  # nats: one token that enters or leaves a nucleus changes the normaliser by its own probability
_ROUNDING = 0.01  # nats
_FILTERS = frozenset(("temperature", "top_p", "top_k", "min_p"))


@dataclass(frozen=True)
class Tolerance:
    """How far two honest backends may be apart.

    Attributes:
        fixed: nats by which `logprob_sum` may differ, whatever the length.
        per_token: nats more for every token.
        edge: nats by which an impossible token's logit may lie below the last kept one.
    """

    fixed: float
    per_token: float
    edge: float

    @classmethod
    def of(cls, spec: RunSpec) -> "Tolerance":
        """The tolerance for a run's dtype and filters."""
        dtype = spec.profile.dtype
        filters = spec.sampler.filters or not _FILTERS.isdisjoint(spec.per_row)
        return cls(_FILTER_FLIP if filters else _ROUNDING, _PER_TOKEN[dtype], _EDGE[dtype])

    def logprob_sum(self, tokens: int) -> float:
        """Nats by which the log-probability of so many tokens may differ."""
        return self.fixed + tokens * self.per_token


def check_row(row: dict[str, Any], scored: dict[str, Any], tolerance: Tolerance) -> list[str]:
    """One line per problem.

    Args:
        row: a dataset row.
        scored: its scores, a row of `schemas.scores.SCORES`.
        tolerance: of the run.
    """
    if row["error"] is not None or scored["error"] is not None:
        return _check_error(row, scored)
    tokens = row["token_ids"]
    problems = []
    if scored["prompt_tokens"] != row["prompt_tokens"]:
        problems.append(
            f"prompt_tokens: {row['prompt_tokens']} in the dataset, {scored['prompt_tokens']} now: another prompt or chat template"
        )
    if row["completion_tokens"] != len(tokens):
        problems.append(f"completion_tokens: {row['completion_tokens']}, but there are {len(tokens)} token_ids")
    outside = [i for i, shortfall in enumerate(scored["shortfall"]) if shortfall > tolerance.edge]
    if outside:
        first = outside[0]
        problems.append(
            f"token_ids: {tokens[first]} at {first} is impossible under the sampler (p = 0, {scored['shortfall'][first]:.3f} nats outside)"
            + (f", and {len(outside) - 1} more" if len(outside) > 1 else "")
        )
    problems += _check_end(row, scored)
    total = math.fsum(scored["logprobs"])
    if math.isfinite(total) and abs(total - row["logprob_sum"]) > (limit := tolerance.logprob_sum(len(tokens))):
        problems.append(
            f"logprob_sum: {row['logprob_sum']:.4f} in the dataset, {total:.4f} now; more than {limit:.3f} apart{_worst(row, scored)}"
        )
    return problems


def _check_error(row: dict[str, Any], scored: dict[str, Any]) -> list[str]:
    stored, found = row["error"], scored["error"]
    if stored is None:
        return [f"error: none in the dataset, but now {found['type']}: {found['message']}"]
    if found is None and stored["type"] not in INPUT_ERRORS:
        return []  # it depended on the pass or the machine, and nothing of it is left to check
    if found is None or found["type"] != stored["type"]:
        return [f"error: {stored['type']} in the dataset, {found['type'] if found else 'none'} now"]
    return []


def _check_end(row: dict[str, Any], scored: dict[str, Any]) -> list[str]:
    count = len(row["token_ids"])
    if scored["finish_reason"] is None:
        return [f"finish_reason: {row['finish_reason']}, but its {count} tokens end neither by a stop nor by the budget"]
    if scored["tokens_used"] < count:
        return [f"finish_reason: the row ends ({scored['finish_reason']}) after token {scored['tokens_used'] - 1}, and has {count} tokens"]
    problems = []
    if scored["finish_reason"] != row["finish_reason"]:
        problems.append(f"finish_reason: {row['finish_reason']} in the dataset, {scored['finish_reason']} by its tokens")
    if scored["completion"] != row["completion"]:
        problems.append("completion: not the text of its token_ids")
    return problems


def _worst(row: dict[str, Any], scored: dict[str, Any]) -> str:
    """The token whose log-probability moved the most, where the dataset has them all."""
    stored = row.get("logprobs")
    if not stored or len(stored) != len(scored["logprobs"]):
        return ""
    gaps = [abs(mine - theirs) for mine, theirs in zip(stored, scored["logprobs"], strict=True)]
    place = gaps.index(max(gaps))
    return f"; most at token {place}: p = {math.exp(stored[place]):.6f} then, {math.exp(scored['logprobs'][place]):.6f} now"
