"""One dataset row as people read it: the conversation, the answer, and how speculation went."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from producer.dataset import row_name
from producer.visible_text import shortened, visible
from schemas.tables import RESERVED_COLUMNS

# Probability of a token, from which on it has the style. Words in the legend, so that colour is not the only sign.
_SHADES = ((0.9, ""), (0.5, "cyan"), (0.1, "yellow"), (0.0, "bold red"))
_ROLE_STYLES = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


_ORIGIN_STYLES = {"accepted": "green", "residual": "bold red", "bonus": "cyan"}


def row_view(row: dict[str, Any], pieces: Sequence[str] | None, origins: Sequence[str] | None = None, *, shorten: bool = False) -> Group:
    """The row for a terminal; colours vanish where there is none, and control characters are shown escaped.

    Args:
        row: a dataset row.
        pieces: what each of its tokens adds to the text, or None to show the completion as it is. With pieces and the column `logprobs`,
            tokens are coloured by the probability that the target gave them.
        origins: with pieces: where each token came from; then that is what the colours say.
        shorten: only beginning and end of prompts that are too long for a terminal.
    """
    parts: list[Any] = [_heading(row)]
    asked = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
    texts = [(turn["role"], visible(turn["content"])) for turn in asked if turn["content"] is not None]
    parts += [_panel(role, Text(shortened(text) if shorten else text)) for role, text in texts]
    if row["error"] is not None:
        message = visible(f"{row['error']['type']}: {row['error']['message']}")
        return Group(*parts, Panel(Text(message), title="error", border_style="red"))
    logprobs = row.get("logprobs")
    if pieces is not None and origins is not None:
        parts += [_panel("assistant", _by_origin(pieces, origins)), _origin_legend(origins)]
    elif pieces is not None and logprobs is not None:
        parts += [_panel("assistant", _by_probability(pieces, logprobs)), _legend()]
    else:
        parts.append(_panel("assistant", Text(visible(row["completion"]))))
    return Group(*parts, *_own_columns(row))


def speculation(acceptance: dict[str, Any]) -> str:
    """`25 cycles; 7 accepted (28 % of 25 drafts judged), 18 residual, 7 bonus; by depth 1: 7/25`."""
    text = f"{acceptance['cycles']:,} cycles"
    judged = acceptance["accepted"] + acceptance["residual"]
    if not judged:
        return text
    text += f"; {acceptance['accepted']:,} accepted ({acceptance['accepted'] / judged:.0%} of {judged:,} drafts judged)"
    text += f", {acceptance['residual']:,} residual, {acceptance['bonus']:,} bonus"
    pairs = zip(acceptance["accepted_by_depth"], acceptance["drafted_by_depth"], strict=True)
    return text + "; by depth " + " ".join(f"{depth}: {accepted}/{drafted}" for depth, (accepted, drafted) in enumerate(pairs, 1))


def _heading(row: dict[str, Any]) -> Text:
    text = Text()
    text.append(visible(row_name(row)), style="bold")
    text.append(f"  row {row['row']:,}, seed {row['seed']}\n")
    text.append(f"{row['prompt_tokens']:,} tokens of prompt, {row['completion_tokens']:,} generated, ends with {row['finish_reason']}")
    if row["logprob_sum"] is not None and row["completion_tokens"]:
        text.append(f", {math.exp(row['logprob_sum'] / row['completion_tokens']):.2f} mean probability")
    text.append("\n" + speculation(row["acceptance"]) if row["acceptance"] is not None and row["error"] is None else "")
    return text


def _panel(role: str, content: Text) -> Panel:
    return Panel(content, title=role, title_align="left", border_style=_ROLE_STYLES.get(role, ""))


def _by_probability(pieces: Sequence[str], logprobs: Sequence[float]) -> Text:
    text = Text()
    for piece, logprob in zip(pieces, logprobs, strict=True):
        text.append(visible(piece), style=next(style for least, style in _SHADES if math.exp(logprob) >= least))
    return text


def _by_origin(pieces: Sequence[str], origins: Sequence[str]) -> Text:
    text = Text()
    for piece, origin in zip(pieces, origins, strict=True):
        text.append(visible(piece), style=_ORIGIN_STYLES[origin])
    return text


def _origin_legend(origins: Sequence[str]) -> Text:
    text = Text("tokens: ")
    for origin, style in _ORIGIN_STYLES.items():
        text.append(f"{origins.count(origin)} {origin}  ", style=style)
    return text


def _legend() -> Text:
    text = Text("probability of a token: ")
    names = ("90 % or more", "50 to 90 %", "10 to 50 %", "less than 10 %")
    for number, (name, (_, style)) in enumerate(zip(names, _SHADES, strict=True)):
        text.append("  " if number else "").append(name, style=style)
    return text


def _own_columns(row: dict[str, Any]) -> list[Text]:
    own = {name: value for name, value in row.items() if name not in RESERVED_COLUMNS and value is not None}
    return [Text(visible(f"{name}: {value}"), overflow="ellipsis", no_wrap=True) for name, value in own.items()]
