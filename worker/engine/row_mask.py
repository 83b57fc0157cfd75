"""`RowMask`: one row's rule, walked along the drafts of a cycle and back again.

The drafter asks for the tokens allowed behind its own drafts one by one, and the verdict for all places of the block: each place is
computed once. What is committed stays walked; what was rejected is walked back.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Rule(Protocol):
    """Which token may come next in one row. It moves forward token by token, and back."""

    @property
    def ended(self) -> bool:
        """Whether the tokens so far complete the row."""

    @property
    def fault(self) -> str | None:
        """Why it cannot say what may come next; it allows nothing then."""

    def allowed(self) -> NDArray[np.uint8]:
        """A bit per token, the lowest first, `[⌈V / 8⌉] uint8`."""

    def advance(self, token: int) -> bool:
        """Take in a token; False, and nothing happens, where it is not allowed."""

    def back(self) -> None:
        """Undo the last `advance` that was allowed."""


class RowMask:
    """A `sampling.token_mask.TokenMask` of a row that is being decoded.

    Args:
        rule: at the row's beginning.

    Attributes:
        fault: why nothing was allowed at the place where that happened last, if it was the rule that gave up.
    """

    def __init__(self, rule: Rule) -> None:
        self.fault: str | None = None
        self._rule = rule
        self._ahead: list[int] = []  # walked, not committed
        self._allowed: list[NDArray[np.uint8]] = []  # behind the first 0, 1, … tokens of `ahead`
        self._lost = False

    @property
    def ended(self) -> bool:
        """Whether the committed tokens complete the row."""
        self._return_to(0)
        return self._rule.ended

    def legal(self, drafts: Sequence[int]) -> int:
        """How many of the drafts, from the first on, may follow each other."""
        common = next((i for i, (mine, theirs) in enumerate(zip(self._ahead, drafts, strict=False)) if mine != theirs), None)
        self._return_to(min(len(self._ahead), len(drafts)) if common is None else common)
        while True:
            place = len(self._ahead)
            if len(self._allowed) == place:
                reachable = not place or not self._rule.ended
                self._allowed.append(self._rule.allowed() if reachable else np.full_like(self._allowed[-1], 0xFF))
                self.fault = self._rule.fault or self.fault
            if place == len(drafts) or self._rule.ended or not self._rule.advance(drafts[place]):
                return place
            self._ahead.append(drafts[place])

    def along(self, drafts: Sequence[int]) -> NDArray[np.uint8]:
        """What is allowed at each place of a block, `[n + 1, ⌈V / 8⌉] uint8`, for its n drafts."""
        reached = self.legal(drafts) + 1
        known = np.stack(self._allowed[:reached])
        if self._lost:
            known[:] = 0
        return np.concatenate([known, np.full((len(drafts) + 1 - reached, known.shape[1]), 0xFF, dtype=np.uint8)])

    def commit(self, token: int) -> bool:
        """Take in a committed token; False where it is not allowed, and nothing is from there on."""
        if self._ahead and self._ahead[0] == token:
            del self._ahead[0], self._allowed[0]
            return True
        self._return_to(0)
        self._allowed.clear()
        if self._rule.ended or not self._rule.advance(token):
            self._lost, self.fault = True, f"token {token} was committed, which is not allowed there"
            return False
        return True

    def _return_to(self, length: int) -> None:
        while len(self._ahead) > length:
            self._ahead.pop()
            self._rule.back()
        del self._allowed[length + 1 :]
