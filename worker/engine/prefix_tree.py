"""`PrefixTree`: which prompts of a cohort begin with the very same passes, so that these passes are made once.

A prompt is read in passes that end at its cuts, absolute positions. Two prompts share a pass only if all passes before it are shared and
both read the same tokens in it: it is then one computation, and sharing changes no bit on any machine. Cuts are therefore a function of the
prompt alone. On a row-invariant backend the cuts themselves change no bit, so prompts are also cut wherever they part from each other.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SHORTEST_BRANCH = 16  # positions between two cuts that only serve sharing
LEAST_SAVING = 64  # positions that such a cut has to save; a pass costs as much as some 30 positions, measured on SmolLM2 on two cores


@dataclass(eq=False)
class PrefixNode:
    """The place behind a sequence of passes.

    Attributes:
        position: tokens read so far.
        children: the next passes, by their tokens.
        waiting: rows that have to pass here, or end here, and have not been read yet.
        ending: rows whose last pass ends here.
        longest: tokens of the longest prompt that passes here.
    """

    position: int = 0
    children: dict[tuple[int, ...], "PrefixNode"] = field(default_factory=dict)
    waiting: int = 0
    ending: list[int] = field(default_factory=list)
    longest: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether more than one reader goes on from here: passes, or rows that end here."""
        return len(self.children) + len(self.ending) > 1


@dataclass(frozen=True)
class Beginning:
    """The tokens of some passes, and the cuts behind each of them."""

    tokens: tuple[int, ...]
    cuts: tuple[int, ...]


class PrefixTree:
    """The passes of a number of prompts.

    Args:
        prompts: token ids of every row, at least one each; the last one is not read, it will be pending.
        own_cuts: for every prompt the cuts that it has by itself, ascending; those at or behind its last token are dropped.
        elastic: whether cuts change no bit.
        known: a beginning that was read before, which prompts may share too.

    Attributes:
        root: where every prompt begins.
        known_place: the node of the known beginning, if prompts read its tokens, and where it matters in its passes.
        common: the longest beginning that more than half of the rows share, so that later rows are likely to as well, and its node.
        shared: places from which more than one reader goes on.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], own_cuts: Sequence[Sequence[int]], *, elastic: bool, known: Beginning | None = None
    ) -> None:
        self._prompts = prompts
        self.root = PrefixNode()
        extra = _branch_cuts(prompts, known) if elastic else [[] for _ in prompts]
        self._cuts = [_cuts(len(prompt) - 1, [*own, *shared]) for prompt, own, shared in zip(prompts, own_cuts, extra, strict=True)]
        for row, prompt in enumerate(prompts):
            node = self.root
            for tokens in [(), *self._passes(row)]:
                node = node.children.setdefault(tokens, PrefixNode(node.position + len(tokens))) if tokens else node
                node.waiting += 1
                node.longest = max(node.longest, len(prompt))
            node.ending.append(row)
        self.known_place = self._find(known, elastic=elastic) if known is not None else None
        self.common = self._common()
        self.shared = sum(node.is_shared for node in self._nodes())

    def order(self) -> list[int]:
        """Rows in an order in which those that share follow each other, so that little has to be kept; long prompts first."""
        ordered: list[int] = []
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            ordered += node.ending
            longest_first = sorted(node.children.values(), key=lambda child: -child.longest)
            nodes += longest_first[::-1]
        return ordered

    def path(self, row: int) -> list[tuple[tuple[int, ...], PrefixNode]]:
        """The passes of a row, and the nodes behind them."""
        node, steps = self.root, []
        for tokens in self._passes(row):
            node = node.children[tokens]
            steps.append((tokens, node))
        return steps

    def _passes(self, row: int) -> Iterator[tuple[int, ...]]:
        for start, end in pairwise([0, *self._cuts[row]]):
            yield tuple(self._prompts[row][start:end])

    def _nodes(self) -> Iterator[PrefixNode]:
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            yield node

    def _find(self, known: Beginning, *, elastic: bool) -> PrefixNode | None:
        node, cuts = self.root, []
        while node.position < len(known.tokens):
            steps = (child for tokens, child in node.children.items() if tokens == known.tokens[node.position : child.position])
            if (step := next(steps, None)) is None:
                return None
            node = step
            cuts.append(node.position)
        return node if elastic or tuple(cuts) == known.cuts else None

    def _common(self) -> tuple[Beginning, PrefixNode] | None:
        node, found = self.root, None
        tokens: tuple[int, ...] = ()
        cuts: tuple[int, ...] = ()
        while node.children:
            passed, node = max(node.children.items(), key=lambda item: item[1].waiting)
            if node.waiting * 2 <= self.root.waiting:
                break
            tokens, cuts = (*tokens, *passed), (*cuts, node.position)
            if node.is_shared or node is self.known_place:
                found = Beginning(tokens, cuts), node
        return found


def _cuts(length: int, wanted: Sequence[int]) -> list[int]:
    """Ascending cuts of a prompt that is read up to `length`, which is the last of them."""
    return [*sorted({cut for cut in wanted if 0 < cut < length}), *([length] if length else [])]


def _branch_cuts(prompts: Sequence[Sequence[int]], known: Beginning | None) -> list[list[int]]:
    """Where every prompt parts from others, as far as a cut there saves anything.

    The places on the way to a common beginning are the same for all prompts that share it.
    """
    read = [tuple(prompt[:-1]) for prompt in prompts]
    distinct = sorted(set(read))
    near = [common_length(before, after) for before, after in pairwise(distinct)]
    found: dict[tuple[int, ...], list[int]] = {}
    for index, tokens in enumerate(distinct):
        sharers: Counter[int] = Counter()  # of exactly so many tokens
        for lengths in (reversed(near[:index]), near[index:]):
            shared = len(tokens)
            for length in lengths:
                shared = min(shared, length)
                if shared < SHORTEST_BRANCH:
                    break
                sharers[shared] += 1
        given = [len(known.tokens)] if known is not None and tokens[: len(known.tokens)] == known.tokens else []
        cuts: list[int] = []
        for length in sorted(sharers):
            others = sum(count for shared, count in sharers.items() if shared >= length)
            gap = length - (cuts[-1] if cuts else 0)
            near_given = any(abs(length - cut) < SHORTEST_BRANCH for cut in given)
            if gap >= SHORTEST_BRANCH and gap * others >= LEAST_SAVING and not near_given:
                cuts.append(length)
        found[tokens] = [*cuts, *given]
    return [found[tokens] for tokens in read]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts begin with alike."""
    return next((place for place, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs), min(len(one), len(other)))
