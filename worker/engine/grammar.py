"""`Grammar`: a run's constraint, compiled by llguidance for a model's tokenizer; and the rule that it is for one row.

llguidance knows which tokens may follow a text under a grammar, and takes tokens back. Nothing here imports mlx, so a constraint can be
checked before a run starts.
"""

from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from schemas.constraint import Constraint
from schemas.errors import GrammarError

_SHOWN = 300  # characters of a compiler's message


def check_constraint(constraint: Constraint) -> None:
    """Refuse what cannot be compiled, without a tokenizer.

    Raises:
        GrammarError: what llguidance says of it.
    """
    faulty, messages = LLMatcher.validate_grammar_with_warnings(_source(constraint))
    if faulty:
        raise GrammarError(_refusal(constraint, messages[0]))


def grammar_tokenizer(tokenizer: Any, vocab_size: int, eos_ids: frozenset[int]) -> LLTokenizer:
    """llguidance's view of a tokenizer; takes a second for a large vocabulary.

    Args:
        tokenizer: mlx-lm's `TokenizerWrapper`.
        vocab_size: V, columns of the logits; at least the tokenizer's size.
        eos_ids: the tokens that may follow a complete text.

    Raises:
        GrammarError: not a fast tokenizer of Hugging Face.
    """
    from llguidance.hf import from_tokenizer  # it imports transformers, which takes seconds that a check of a constraint need not wait

    try:
        return from_tokenizer(tokenizer._tokenizer, n_vocab=vocab_size, eos_token=sorted(eos_ids))
    except ValueError as error:
        raise GrammarError(f"a constraint needs a model with a fast tokenizer (tokenizer.json): {error}") from error


class Grammar:
    """A constraint and a tokenizer, compiled once for all rows.

    Raises:
        GrammarError: the constraint cannot be compiled.
    """

    def __init__(self, constraint: Constraint, tokenizer: LLTokenizer) -> None:
        self.vocab_size: int = tokenizer.vocab_size
        self._start = LLMatcher(tokenizer, _source(constraint), log_level=0)
        if self._start.is_error():
            raise GrammarError(_refusal(constraint, self._start.get_error()))

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning of a text."""
        return self._start.deep_copy()


class GrammarRule:
    """What a grammar allows in one row; a `worker.engine.row_mask.Rule`."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._tokens: list[int] = []
        self._fault: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the text is complete and nothing can be added."""
        return self._fault is None and self._matcher.is_stopped()

    @property
    def fault(self) -> str | None:
        """What made llguidance give up here: a limit on the grammar's complexity."""
        return self._fault

    def allowed(self) -> NDArray[np.uint8]:
        """A bit per token, the lowest first, `[⌈V / 8⌉] uint8`; end tokens where the text is complete."""
        width = -(-self._grammar.vocab_size // 8)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)[:width]
        if not self._matcher.is_error():
            return bits
        self._fault = self._matcher.get_error().partition("\n")[0]
        return np.zeros(width, dtype=np.uint8)

    def advance(self, token: int) -> bool:
        """Take in a token; False, and nothing happens, where it is not allowed."""
        if self._fault is not None:
            return False
        taken = self._matcher.try_consume_tokens([token]) == 1
        if self._matcher.is_error():
            self._start_again()
            return False
        if taken:
            self._tokens.append(token)
        return taken

    def back(self) -> None:
        """Undo the last `advance` that was allowed."""
        self._tokens.pop()
        if self._fault is None:
            self._matcher.rollback(1)
        else:
            self._start_again()

    def _start_again(self) -> None:
        """A matcher that gave up stays so; a row that did not take the token which it gave up at must not notice."""
        self._fault = None
        self._matcher = self._grammar.matcher()
        self._matcher.consume_tokens(self._tokens)


def _source(constraint: Constraint) -> str:
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "grammar":
        return LLMatcher.grammar_from_lark(constraint.text)
    try:
        return LLMatcher.grammar_from_json_schema(constraint.text)
    except ValueError as error:
        raise GrammarError(_refusal(constraint, str(error))) from error


def _refusal(constraint: Constraint, why: str) -> str:
    return f"the {constraint.kind.replace('-', ' ')} cannot be compiled: {why.strip()[:_SHOWN]}"
