"""`DatasetStatistics`: how a dataset's rows are distributed, counted in one pass over its part files with bounded memory."""

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from producer.dataset import Dataset
from schemas.manifest import ShardRecord

LISTED = 10  # rows of each list of extremes
MIN_JUDGED = 20  # drafts; the accepted share of fewer says nothing about a row
CALIBRATION_BINS = 10
_COLUMNS = ["finish_reason", "prompt_tokens", "completion_tokens", "acceptance"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, order=True)
class RowPlace:
    """A row worth a look, and where it is.

    Attributes:
        score: what it is listed for.
        shard: shard index.
        index: position in the part file.
    """

    score: float
    shard: int
    index: int


@dataclass
class DepthSums:
    """Sums over rows for the drafts of one depth; enough for a share and its error when the drafts of one row depend on each other.

    Attributes:
        drafted: Σd.
        accepted: Σa.
        squares: Σd², Σad, Σa².
        rows: rows with a draft at this depth.
    """

    drafted: int = 0
    accepted: int = 0
    squares: tuple[int, int, int] = (0, 0, 0)
    rows: int = 0

    @property
    def share(self) -> float:
        """Accepted share of the drafts; NaN without a draft."""
        return self.accepted / self.drafted if self.drafted else float("nan")

    @property
    def error(self) -> float:
        """Standard error of the share, rows being drawn independently and drafts within a row not (the ratio estimator)."""
        if self.rows < 2 or not self.drafted:
            return float("nan")
        dd, ad, aa = self.squares
        spread = max(0.0, aa - 2 * self.share * ad + self.share**2 * dd)
        return float(np.sqrt(spread * self.rows / (self.rows - 1)) / self.drafted)


@dataclass
class DatasetStatistics:
    """Distributions over the rows that are no error rows.

    Attributes:
        prompt_lengths: number of rows with a prompt of 0, 1, … tokens.
        completion_lengths: number of rows with a completion of 0, 1, … tokens.
        depths: what became of the drafts of depth 1, 2, …
        cycle_counts: number of rows of 0, 1, … draft-verify-commit cycles.
        calibration: [4, bins] judged drafts, accepted, Σα and Σα(1-α) of the rows whose mean α lies in each bin of [0, 1].
        slowest: the rows with the most cycles, most first.
        lowest: the rows with the smallest accepted share, smallest first, among those with `MIN_JUDGED` judged drafts.
        highest: the rows with the largest accepted share, largest first, likewise.
    """

    prompt_lengths: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    completion_lengths: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    depths: list[DepthSums] = field(default_factory=list)
    cycle_counts: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    calibration: Floats = field(default_factory=lambda: np.zeros((4, CALIBRATION_BINS)))
    slowest: list[RowPlace] = field(default_factory=list)
    lowest: list[RowPlace] = field(default_factory=list)
    highest: list[RowPlace] = field(default_factory=list)

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> "DatasetStatistics":
        """Read four columns of every part file that the manifest names.

        Raises:
            LandingError: a part file is missing or broken.
        """
        statistics = cls()
        for shard in dataset.manifest.shards:
            statistics._see(shard, dataset.table(shard, _COLUMNS))
        return statistics

    @property
    def cycles(self) -> int:
        """Draft-verify-commit cycles of all rows."""
        return int(np.arange(len(self.cycle_counts)) @ self.cycle_counts)

    @property
    def accepted_lengths(self) -> list[int]:
        """Number of cycles that accepted exactly 0, 1, … drafts; empty without drafts."""
        if not self.depths:
            return []
        at_least = [self.cycles, *(depth.accepted for depth in self.depths), 0]
        return [more - most for more, most in itertools.pairwise(at_least)]

    def _see(self, shard: ShardRecord, table: pa.Table) -> None:
        good = np.flatnonzero([reason != "error" for reason in table["finish_reason"].to_pylist()])
        table = table.take(pa.array(good))
        self.prompt_lengths = _counted(self.prompt_lengths, _numbers(table["prompt_tokens"]))
        self.completion_lengths = _counted(self.completion_lengths, _numbers(table["completion_tokens"]))
        acceptance = pa.chunked_array(table["acceptance"]).combine_chunks()
        fields = dict(zip([part.name for part in acceptance.type], acceptance.flatten(), strict=True))
        cycles = _numbers(fields["cycles"])
        self.cycle_counts = _counted(self.cycle_counts, cycles)
        self.slowest = _largest(self.slowest, cycles.astype(np.float64), shard.shard, good)
        drafted = fields["drafted_by_depth"].to_pylist()
        accepted = fields["accepted_by_depth"].to_pylist()
        for depth in range(max(map(len, drafted), default=0)):
            self._see_depth(
                depth, [row[depth] for row in drafted if depth < len(row)], [row[depth] for row in accepted if depth < len(row)]
            )
        self._see_judged(shard, fields, good)

    def _see_depth(self, depth: int, drafted: list[int], accepted: list[int]) -> None:
        if depth == len(self.depths):
            self.depths.append(DepthSums())
        sums = self.depths[depth]
        d, a = np.array(drafted, np.int64), np.array(accepted, np.int64)
        sums.drafted += int(d.sum())
        sums.accepted += int(a.sum())
        new = (int((d * d).sum()), int((a * d).sum()), int((a * a).sum()))
        sums.squares = (sums.squares[0] + new[0], sums.squares[1] + new[1], sums.squares[2] + new[2])
        sums.rows += int((d > 0).sum())

    def _see_judged(self, shard: ShardRecord, fields: dict[str, pa.Array], good: Ints) -> None:
        accepted = _numbers(fields["accepted"])
        judged = accepted + _numbers(fields["residual"])
        some = judged > 0
        expected = fields["expected_accepted"].to_numpy(zero_copy_only=False)[some]
        variance = fields["accepted_variance"].to_numpy(zero_copy_only=False)[some]
        bins = np.minimum((expected / judged[some] * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        for line, values in enumerate((judged[some], accepted[some], expected, variance)):
            self.calibration[line] += np.bincount(bins, weights=values, minlength=CALIBRATION_BINS)
        enough = judged >= MIN_JUDGED
        share = accepted[enough] / judged[enough]
        self.highest = _largest(self.highest, share, shard.shard, good[enough])
        self.lowest = [_negated(p) for p in _largest([_negated(p) for p in self.lowest], -share, shard.shard, good[enough])]


def quantiles(counts: Ints, shares: tuple[float, ...]) -> list[int]:
    """The values below which the given shares of a population lie.

    Args:
        counts: number of members with the value 0, 1, …
        shares: in [0, 1].
    """
    total = np.cumsum(counts)
    return [int(np.searchsorted(total, share * total[-1])) if total[-1] else 0 for share in shares]


def _numbers(column: pa.ChunkedArray | pa.Array) -> Ints:
    values: Ints = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return values.astype(np.int64)


def _counted(counts: Ints, values: Ints) -> Ints:
    new = np.bincount(values, minlength=len(counts))
    new[: len(counts)] += counts
    return new


def _largest(places: list[RowPlace], scores: Floats, shard: int, indices: Ints) -> list[RowPlace]:
    """The `LISTED` largest of what there was and what comes; of equal ones the first."""
    order = np.argsort(-scores, kind="stable")[:LISTED]
    new = [RowPlace(float(scores[i]), shard, int(indices[i])) for i in order]
    return heapq.nsmallest(LISTED, [*places, *new], key=lambda place: (-place.score, place.shard, place.index))


def _negated(place: RowPlace) -> RowPlace:
    return RowPlace(-place.score, place.shard, place.index)
