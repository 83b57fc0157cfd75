"""`RowDetail`: a few chosen rows of a dataset, with what a person wants to see of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from producer.dataset import Dataset, row_name
from producer.dataset_statistics import RowPlace

EXCERPT = 160  # characters
_COLUMNS = ["record_id", "sample", "completion", "token_ids", "finish_reason", "acceptance"]


@dataclass(frozen=True)
class RowDetail:
    """One row.

    Attributes:
        name: record id, and the sample where it is not the first.
        tokens: completion tokens.
        cycles: draft-verify-commit cycles.
        accepted: accepted drafts.
        judged: drafts whose fate was decided.
        distinct: share of different tokens among the completion's tokens; small in a loop.
        finish_reason: stop or length.
        excerpt: the completion's beginning and end, on one line.
    """

    name: str
    tokens: int
    cycles: int
    accepted: int
    judged: int
    distinct: float
    finish_reason: str
    excerpt: str

    @property
    def share(self) -> float:
        """Accepted share of the judged drafts; NaN without one."""
        return self.accepted / self.judged if self.judged else float("nan")


def row_details(dataset: Dataset, places: Iterable[RowPlace]) -> list[RowDetail]:
    """The rows at some places, in their order; reads every part file once.

    Raises:
        LandingError: a part file is missing or broken.
    """
    wanted = list(places)
    found: dict[RowPlace, RowDetail] = {}
    shards = {shard.shard: shard for shard in dataset.manifest.shards}
    for number in Counter(place.shard for place in wanted):
        mine = [place for place in wanted if place.shard == number]
        rows = dataset.table(shards[number], _COLUMNS).take([place.index for place in mine]).to_pylist()
        for place, row in zip(mine, rows, strict=True):
            acceptance = row["acceptance"]
            tokens = row["token_ids"]
            found[place] = RowDetail(
                name=row_name(row),
                tokens=len(tokens),
                cycles=acceptance["cycles"],
                accepted=acceptance["accepted"],
                judged=acceptance["accepted"] + acceptance["residual"],
                distinct=len(set(tokens)) / len(tokens) if tokens else 0.0,
                finish_reason=row["finish_reason"],
                excerpt=excerpt(row["completion"]),
            )
    return [found[place] for place in wanted]


def excerpt(text: str, length: int = EXCERPT) -> str:
    """A text on one line: whole, or its beginning and its end."""
    line = " ".join(text.split())
    half = (length - 3) // 2
    return line if len(line) <= length else f"{line[:half]} … {line[-half:]}"
