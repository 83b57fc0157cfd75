"""The plan of a prefill: which passes prompts share, and in which order rows are read."""

import random

import pytest

from worker.engine.prefix_tree import LEAST_SAVING, Beginning, PrefixTree

PREFIX = list(range(1000, 1100))


def positions_read(tree: PrefixTree) -> int:
    """Tokens of all passes, each made once."""
    nodes, total = [tree.root], 0
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        total += sum(len(tokens) for tokens in node.children)
    return total


def tree_of(prompts: list[list[int]], own_cuts: list[list[int]] | None = None, **options: object) -> PrefixTree:
    return PrefixTree(prompts, own_cuts or [[] for _ in prompts], **options)


def test_a_common_beginning_is_one_pass() -> None:
    prompts = [[*PREFIX, row, row, 7] for row in range(5)]
    tree = tree_of(prompts, elastic=True)
    assert positions_read(tree) == 100 + 5 * 2
    assert [tree.path(row)[0][1].position for row in range(5)] == [100] * 5


def test_cuts_that_count_are_shared_up_to_the_last_that_agrees() -> None:
    prompts = [[*PREFIX, row, 7] for row in range(4)]
    every = [[64, 96]] * 4
    assert positions_read(tree_of(prompts, every, elastic=False)) == 96 + 4 * (101 - 96)
    other = [[64, 96], [64, 96], [64], [32, 64, 96]]
    # The third shares 64, the fourth reads other passes from its start on.
    assert positions_read(tree_of(prompts, other, elastic=False)) == 96 + 2 * 5 + (101 - 64) + 101


def test_prompts_that_only_their_last_token_tells_apart_are_read_once() -> None:
    tree = tree_of([[*PREFIX, 1], [*PREFIX, 2], [*PREFIX, 1]], elastic=False)
    assert positions_read(tree) == 100
    assert tree.root.children[tuple(PREFIX)].ending == [0, 1, 2]


def test_a_prompt_may_end_inside_another() -> None:
    tree = tree_of([[*PREFIX, 1], [*PREFIX, 2, 3, 4], PREFIX[:30]], elastic=True)
    # The first ends where the second goes on.
    assert positions_read(tree) == 100 + 2 + 29
    assert tree.path(0)[-1][1] is tree.path(1)[-2][1]


def test_a_cut_has_to_save_more_than_a_pass_costs() -> None:
    few = LEAST_SAVING - 1
    assert positions_read(tree_of([[*PREFIX[:few], row, 7] for row in range(2)], elastic=True)) == 2 * (few + 1)
    assert positions_read(tree_of([[*PREFIX[:few], row, 7] for row in range(3)], elastic=True)) == few + 3


def test_a_prompt_of_one_token_reads_nothing() -> None:
    tree = tree_of([[5], [6], [5, 6]], elastic=False)
    assert tree.path(0) == tree.path(1) == []
    assert positions_read(tree) == 1


def test_families_follow_each_other_and_the_longest_comes_first() -> None:
    other = [token + 500 for token in PREFIX]
    prompts = [[*PREFIX, 1, 2], [*other, 1, 2, 3], [9] * 90, [*PREFIX, 2, 2, 2, 2], [*other, 4, 4], [*PREFIX, 3, 2]]
    assert tree_of(prompts, elastic=True).order() == [3, 0, 5, 1, 4, 2]


def test_what_most_rows_share_is_remembered_and_found_again() -> None:
    prompts = [[*PREFIX, row, 7] for row in range(4)] + [[3, 4, 5]]
    tree = tree_of(prompts, elastic=True)
    assert tree.common is not None
    known, node = tree.common
    assert known == Beginning(tuple(PREFIX), (100,))
    assert node.position == 100
    later = tree_of([[*PREFIX, 50, 51, 7], [3, 4]], elastic=True, known=known)
    assert later.known_place is later.path(0)[0][1]
    assert later.known_place.position == 100
    # What they share by chance a little further on does not replace it.
    further = tree_of([[*PREFIX, 50, row, 7] for row in range(4)], elastic=True, known=known)
    assert further.common == (known, further.known_place)
    elsewhere = tree_of([[*PREFIX[:90], 50, 51, 7]], elastic=True, known=known)
    assert elsewhere.known_place is None
    assert elsewhere.common is None


@pytest.mark.parametrize(("cuts", "found"), [([64, 100], True), ([100], False)])
def test_where_cuts_count_a_known_beginning_needs_the_same_ones(cuts: list[int], found: bool) -> None:
    known = Beginning(tuple(PREFIX), (64, 100))
    assert (tree_of([[*PREFIX, 1, 7]], [cuts], elastic=False, known=known).known_place is not None) == found


@pytest.mark.parametrize("elastic", [True, False])
def test_every_row_reads_its_own_prompt_whole_in_passes_of_its_own_where_cuts_count(elastic: bool) -> None:
    draw = random.Random(4)
    stems = [[draw.randrange(3) for _ in range(draw.randrange(1, 60))] for _ in range(6)]
    prompts = [[*draw.choice(stems), *draw.choice(stems), *(draw.randrange(3) for _ in range(draw.randrange(1, 9)))] for _ in range(80)]
    own_cuts = [[16, 32, 48, 64, 80, 96, 112] for _ in prompts]
    tree = tree_of(prompts, own_cuts, elastic=elastic)
    assert sorted(tree.order()) == list(range(80))
    for row, prompt in enumerate(prompts):
        path = tree.path(row)
        assert [token for tokens, _ in path for token in tokens] == prompt[:-1]
        if not elastic:
            alone = tree_of([prompt], [own_cuts[row]], elastic=False).path(0)
            assert [tokens for tokens, _ in path] == [tokens for tokens, _ in alone]
    assert positions_read(tree) < sum(len(prompt) - 1 for prompt in prompts)
