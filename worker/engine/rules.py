"""`Rules`: from what a run demands of its completions to the mask of one row."""

from collections.abc import Sequence
from functools import cached_property

from llguidance import LLTokenizer

from schemas.constraint import Constraint
from schemas.run_spec import RunSpec
from worker.engine.grammar import Grammar, GrammarRule, grammar_tokenizer
from worker.engine.row_mask import RowMask, Rule
from worker.engine.thinking import ThinkingRule, ThinkTags
from worker.engine.trunk import Trunk


class Rules:
    """What is compiled for a model, kept from row to row."""

    def __init__(self, trunk: Trunk) -> None:
        self._trunk = trunk
        self._compiled: tuple[Constraint, Grammar] | None = None

    def mask(self, spec: RunSpec, prompt_ids: Sequence[int]) -> RowMask | None:
        """The mask of a row at its beginning; None where the run demands nothing.

        Raises:
            GrammarError: the constraint cannot be compiled for this model.
            ModelError: a budget for thinking, and a model without think tags.
        """
        rule: Rule | None = None if spec.constraint is None else GrammarRule(self._grammar(spec.constraint))
        if spec.thinking_budget is not None:
            trunk = self._trunk
            rule = ThinkingRule(
                ThinkTags.of(trunk.tokenizer, spec.model.name),
                spec.thinking_budget,
                prompt_ids,
                trunk.vocab_size,
                sorted(trunk.eos_ids),
                rule,
            )
        return None if rule is None else RowMask(rule)

    def _grammar(self, constraint: Constraint) -> Grammar:
        if self._compiled is None or self._compiled[0] != constraint:
            self._compiled = constraint, Grammar(constraint, self._tokenizer)
        return self._compiled[1]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return grammar_tokenizer(self._trunk.tokenizer, self._trunk.vocab_size, self._trunk.eos_ids)
