"""What one row commits, where it stops, and what it counts."""

from types import SimpleNamespace

import pytest

from worker.engine.completion import Request
from worker.engine.row import Row

END = 99


class LetterDetokenizer:
    """Token n is the nth letter."""

    def __init__(self) -> None:
        self.text = ""

    def add_token(self, token: int) -> None:
        self.text += chr(ord("a") + token)

    def finalize(self) -> None:
        pass


def make_row(*, max_tokens: int = 100, stop: tuple[str, ...] = (), depth: int = 3) -> Row:
    request = Request(index=0, sample=0, key=1, prompt="p", messages=None, bad_input=None)
    tokenizer = SimpleNamespace(eos_token_ids={END}, detokenizer=LetterDetokenizer())
    return Row(request, [1, 2], max_tokens=max_tokens, stop=stop, tokenizer=tokenizer, depth=depth)


def test_a_cycle_counts_accepted_residual_and_bonus() -> None:
    row = make_row()
    row.commit([0, 1], [-1.0, -2.0], [0.9, 0.5, 0.0])  # one accepted, then a residual token
    row.commit([2, 3, 4, 5], [-1.0] * 4, [1.0, 0.25, 0.5])  # all accepted, then a bonus token
    acceptance = row.acceptance.column()
    assert row.token_ids == [0, 1, 2, 3, 4, 5]
    assert (acceptance["cycles"], acceptance["accepted"], acceptance["residual"], acceptance["bonus"]) == (2, 4, 1, 1)
    assert acceptance["drafted_by_depth"] == [2, 2, 2]
    assert acceptance["accepted_by_depth"] == [2, 1, 1]
    assert acceptance["expected_accepted"] == pytest.approx(0.9 + 0.5 + 1.0 + 0.25 + 0.5)
    assert acceptance["accepted_variance"] == pytest.approx(0.09 + 0.25 + 0.0 + 0.1875 + 0.25)


def test_a_stop_token_inside_an_accepted_run_leaves_nothing_behind_it() -> None:
    row = make_row()
    row.commit([0, END, 2, 3], [-1.0, -2.0, -3.0, -4.0], [0.5, 0.5, 0.5])
    completion = row.completion()
    assert (completion.token_ids, completion.logprobs) == ([0, END], [-1.0, -2.0])
    assert (completion.text, completion.finish_reason) == ("a", "stop")
    acceptance = completion.acceptance.column()
    assert (acceptance["accepted"], acceptance["residual"], acceptance["bonus"]) == (2, 0, 0)
    assert acceptance["drafted_by_depth"] == [1, 1, 0]
    assert acceptance["expected_accepted"] == pytest.approx(1.0)
    assert row.counts == {0: 1, END: 1}


def test_a_stop_string_that_spans_tokens_cuts_the_text_before_it() -> None:
    row = make_row(stop=("cd", "zz"))
    row.commit([0, 1, 2, 3], [-1.0] * 4, [0.5] * 3)
    completion = row.completion()
    assert (completion.text, completion.finish_reason, completion.token_ids) == ("ab", "stop", [0, 1, 2, 3])


def test_the_first_of_several_stop_strings_wins() -> None:
    row = make_row(stop=("bcd", "c"))
    row.commit([0, 1, 2, 3], [-1.0] * 4, [0.5] * 3)
    assert row.completion().text == "ab"
    assert row.token_ids == [0, 1, 2]


def test_stop_beats_length() -> None:
    at_budget = make_row(max_tokens=2)
    at_budget.commit([0, END, 1, 1], [-1.0] * 4, [0.5] * 3)
    assert at_budget.finish_reason == "stop"
    by_string = make_row(max_tokens=2, stop=("ab",))
    by_string.commit([0, 1, 1, 1], [-1.0] * 4, [0.5] * 3)
    assert by_string.finish_reason == "stop"


def test_the_budget_trims_an_accepted_run() -> None:
    row = make_row(max_tokens=2)
    row.commit([0, 1, 2, 3], [-1.0] * 4, [0.5] * 3)
    assert (row.token_ids, row.finish_reason) == ([0, 1], "length")
    assert row.acceptance.drafted_by_depth == [1, 1, 0]
