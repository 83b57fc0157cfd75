"""Which rows of a dataset are looked at: all, a random sample, or those of some records."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from producer.dataset import Dataset
from schemas.errors import InputError
from schemas.manifest import ShardRecord


@dataclass(frozen=True)
class RowSelection:
    """What was asked for; the first that is given counts.

    Attributes:
        every: all rows.
        ids: record ids, all samples of each.
        count: rows drawn at random without repetition, ≥ 1.
        seed: of that draw.
        or_numbers: an id that no record has may be the number of a row.
    """

    every: bool = False
    ids: tuple[str, ...] = ()
    count: int = 100
    seed: int = 0
    or_numbers: bool = False

    def rows(self, dataset: Dataset) -> int | None:
        """How many rows these are; None where nobody has looked for the ids yet."""
        total = sum(shard.rows for shard in dataset.manifest.shards)
        return total if self.every else None if self.ids else min(self.count, total)

    def tables(self, dataset: Dataset) -> Iterator[tuple[ShardRecord, pa.Table]]:
        """The chosen rows of every part file that has some, in dataset order.

        Raises:
            InputError: an id that the dataset does not have.
            LandingError: a part file that cannot be read.
        """
        if self.ids and not self.every:
            yield from self._by_id(dataset)
            return
        shards = dataset.manifest.shards
        total = sum(shard.rows for shard in shards)
        chosen = np.arange(total)
        if not self.every and self.count < total:
            chosen = np.sort(np.random.default_rng(self.seed).choice(total, self.count, replace=False))
        first = 0
        for shard in shards:
            mine = chosen[(chosen >= first) & (chosen < first + shard.rows)] - first
            first += shard.rows
            if len(mine):
                table = dataset.table(shard)
                yield shard, table.take(pa.array(mine[mine < table.num_rows]))

    def _by_id(self, dataset: Dataset) -> Iterator[tuple[ShardRecord, pa.Table]]:
        missing = yield from self._matching(dataset, "record_id", pa.array(self.ids, pa.string()))
        if self.or_numbers and missing and all(name.isascii() and name.isdigit() and len(name) < 19 for name in missing):
            missing = yield from self._matching(dataset, "row", pa.array(sorted(map(int, missing)), pa.int64()))
        if missing:
            raise InputError(f"the dataset has no record {min(missing)!r}{self._range(dataset)}")

    def _matching(self, dataset: Dataset, column: str, wanted: pa.Array) -> Generator[tuple[ShardRecord, pa.Table], None, set[str]]:
        """Rows whose column has one of the values; returns the values, as text, that no row has."""
        missing = set(map(str, wanted.to_pylist()))
        for shard in dataset.manifest.shards:
            table = dataset.table(shard)
            table = table.filter(pc.is_in(table[column], wanted))
            if table.num_rows:
                missing -= set(map(str, table[column].to_pylist()))
                yield shard, table
        return missing

    def _range(self, dataset: Dataset) -> str:
        """What numbers of rows there are, where they may be asked for."""
        if not self.or_numbers:
            return ""
        last = dataset.table(dataset.manifest.shards[-1], ["row"])["row"][-1]
        return f", and its rows have the numbers 0 to {last}"
