"""`ThinkingRule`: a budget for what a model writes between its think tags, and a rule for what comes behind.

The budget counts the tokens of the row between the tags. When it is used up, the closing tag is the only token that is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ModelError
from worker.engine.row_mask import Rule


@dataclass(frozen=True)
class ThinkTags:
    """A model's tags, one token each.

    Attributes:
        start: id of the opening tag.
        end: id of the closing tag.
    """

    start: int
    end: int

    @classmethod
    def of(cls, tokenizer: Any, model: str) -> "ThinkTags":
        """The tags that mlx-lm's `TokenizerWrapper` finds in a tokenizer.

        Raises:
            ModelError: none, or tags of several tokens.
        """
        start, end = (list(tokens or ()) for tokens in (tokenizer.think_start_tokens, tokenizer.think_end_tokens))
        if not (len(start) == len(end) == 1):
            found = f"tags of {len(start)} and {len(end)} tokens" if start else "none"
            raise ModelError(f"thinking_budget needs a model with think tags of one token each, such as <think>; {model} has {found}")
        return cls(start[0], end[0])


@dataclass(frozen=True)
class _State:
    """Where a row is: inside the tags, how many tokens stood between them so far, and whether the opening tag may still come first."""

    inside: bool
    used: int
    may_open: bool


class ThinkingRule:
    """A `worker.engine.row_mask.Rule`.

    Args:
        tags: the model's.
        budget: most tokens between the tags; ≥ 0.
        prompt_ids: the prompt; a chat template may have opened the tags, or opened and closed them.
        vocab_size: V.
        end_ids: tokens that end a row; they are not allowed between the tags where something has to follow.
        then: what is allowed outside the tags; None allows everything there, a second opening tag too.
    """

    def __init__(
        self, tags: ThinkTags, budget: int, prompt_ids: Sequence[int], vocab_size: int, end_ids: Sequence[int], then: Rule | None
    ) -> None:
        self._tags = tags
        self._budget = budget
        self._then = then
        last = next((token for token in reversed(prompt_ids) if token in (tags.start, tags.end)), None)
        self._states = [_State(inside=last == tags.start, used=0, may_open=last is None)]
        everything = np.packbits(np.ones(vocab_size, dtype=bool), bitorder="little")
        self._everything = everything
        self._thinking = everything if then is None else everything & ~_bits(end_ids, vocab_size)
        self._close, self._open = _bits([tags.end], vocab_size), _bits([tags.start], vocab_size)

    @property
    def ended(self) -> bool:
        """Whether the row is complete by what comes behind the tags."""
        return not self._states[-1].inside and self._then is not None and self._then.ended

    @property
    def fault(self) -> str | None:
        """Of what comes behind the tags."""
        return None if self._states[-1].inside or self._then is None else self._then.fault

    def allowed(self) -> NDArray[np.uint8]:
        """A bit per token, the lowest first, `[⌈V / 8⌉] uint8`."""
        state = self._states[-1]
        if state.inside:
            return self._close if state.used >= self._budget else self._thinking
        if self._then is None:
            return self._everything
        return self._then.allowed() | self._open if state.may_open else self._then.allowed()

    def advance(self, token: int) -> bool:
        """Take in a token; False, and nothing happens, where it is not allowed."""
        state = self._states[-1]
        if state.inside:
            if not self.allowed()[token // 8] >> token % 8 & 1:
                return False
            closes = token == self._tags.end
            self._states.append(replace(state, inside=not closes, used=state.used + (not closes)))
            return True
        if token == self._tags.start and (self._then is None or state.may_open):
            self._states.append(replace(state, inside=True, may_open=False))
            return True
        if self._then is not None and not self._then.advance(token):
            return False
        self._states.append(replace(state, may_open=False))
        return True

    def back(self) -> None:
        """Undo the last `advance` that was allowed."""
        undone, before = self._states.pop(), self._states[-1]
        if not undone.inside and not before.inside and self._then is not None:
            self._then.back()


def _bits(tokens: Sequence[int], vocab_size: int) -> NDArray[np.uint8]:
    held = np.zeros(vocab_size, dtype=bool)
    held[list(tokens)] = True
    return np.packbits(held, bitorder="little")
