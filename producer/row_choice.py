"""`choose_rows`: the rows that `specmill show` was asked for."""

import random
from collections.abc import Sequence
from itertools import islice

from producer.dataset import Dataset
from producer.export import rows_where
from producer.export_formats import Row
from producer.row_selection import RowSelection
from schemas.errors import InputError


def choose_rows(dataset: Dataset, ids: Sequence[str], sample: int | None, where: str | None) -> list[Row]:
    """All samples of some records, the first row of a condition, or any one row.

    Args:
        dataset: finished or not.
        ids: record ids, or numbers of rows where no record has such an id; none for one row at random.
        sample: keep this sample only, or None.
        where: a condition in DuckDB's SQL, or None.

    Raises:
        InputError: no such row; the message says what there is.
        LandingError: a part file is missing or broken.
    """
    if where is not None:
        found = list(islice(rows_where(dataset, where), 1))
        if not found:
            raise InputError(f"no row of {dataset.out} has {where}")
        return found
    if not dataset.manifest.shards:
        raise InputError(f"nothing of {dataset.out} has landed yet; specmill watch {dataset.out} shows how far it is")
    selection = RowSelection(ids=tuple(ids), or_numbers=True) if ids else RowSelection(count=1, seed=random.SystemRandom().getrandbits(32))
    rows = [row for _, table in selection.tables(dataset) for row in table.to_pylist()]
    chosen = [row for row in rows if sample is None or row["sample"] == sample]
    if not chosen:
        samples = dataset.manifest.spec.samples
        raise InputError(f"--sample must be in [0, {samples - 1}]; received {sample}")
    return chosen
