"""What a dataset says of its own calibration: in total and by depth from its rows, by worker and chip from its attempts log."""

from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from producer.dataset import Dataset
from producer.run_summary import RunSummary
from worker.calibration import Calibration
from worker.part_names import LOG
from worker.remote_path import listed, parquet_source


def calibration_lines(dataset: Dataset) -> tuple[list[str], bool]:
    """What a dataset says of its own calibration, one line per depth and per worker, and whether any of it is broken.

    No lines where nothing was drafted.
    """
    summary = RunSummary.of_dataset(dataset.out, dataset.manifest)
    if not sum(summary.drafted_by_depth):
        return [], False
    parts = summary.calibrations | dict(_by_worker(dataset))
    return [f"{where}: {calibration.text()}" for where, calibration in parts.items()], any(c.broken for c in parts.values())


def _by_worker(dataset: Dataset) -> Iterable[tuple[str, Calibration]]:
    """The attempts log by worker and chip; only what landed is in it."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    columns = ["accepted", "expected_accepted", "accepted_variance"]
    for path in listed(dataset.out / LOG, "attempts-*.parquet"):
        try:
            table = pq.read_table(parquet_source(path), columns=["worker", "chip", *columns])
        except (OSError, pa.ArrowInvalid):
            continue  # the log explains a dataset and is no part of it
        for row in table.to_pylist() if set(columns) <= set(table.column_names) else ():
            where = f"on {row['worker']} ({row['chip']})"
            sums[where] = [mine + row[name] for mine, name in zip(sums[where], columns, strict=True)]
    if len(sums) > 1:
        for where, (accepted, expected, variance) in sorted(sums.items()):
            yield where, Calibration(int(accepted), expected, variance)
