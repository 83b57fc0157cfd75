"""`AttemptsLog`: what every landed attempt cost and where it ran, first as a journal, then as Parquet.

A report is appended to `OUT/log/attempts-NNNN.jsonl` and synced *before* its part file gets its name, so whatever dies when, every part
file's backend is known. A full journal, or the end of a session, becomes `attempts-NNNN.parquet` and the journal goes. Nothing is appended
to in an object store: there the journal lies on this machine (`producer.local_side`).
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import DecodeError, LandingError
from schemas.progress import AttemptReport
from schemas.tables import ATTEMPTS
from worker.landing import land_table
from worker.remote_path import Place

JOURNAL_LINES = 5000  # then a new file begins
_NAME = re.compile(r"attempts-(\d{4,})\.(jsonl|parquet)")


class AttemptsLog:
    """The log folder of one coordinator session."""

    def __init__(self, folder: Place, journals: Path) -> None:
        """`folder` gets the Parquet files; `journals` is the same folder where that can be appended to."""
        self._folder = folder
        self._journals = journals
        self._reports: list[AttemptReport] = []
        self._file: int | None = None
        self._number = 0

    def open(self) -> list[AttemptReport]:
        """Make Parquet of the journals that an earlier session left.

        Returns:
            Their reports, in order.

        Raises:
            LandingError: a journal that this specmill cannot read, or a file that cannot be written.
        """
        for folder in (self._folder, self._journals):
            folder.mkdir(parents=True, exist_ok=True)
        recovered: list[AttemptReport] = []
        for path in sorted(self._journals.glob("attempts-*.jsonl")):
            reports = read_journal(path)
            recovered += reports
            # With the Parquet file there, the session died between the two steps of `close`.
            if reports and not (parquet := self._folder / f"{path.stem}.parquet").exists():
                land_table(parquet, attempts_table(reports))
            path.unlink()
        numbers = [int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        self._number = max(numbers, default=-1) + 1
        return recovered

    def append(self, *reports: AttemptReport) -> None:
        """Add reports, on disk before this returns.

        Raises:
            LandingError: the journal could not be written.
        """
        try:
            if self._file is None:
                self._file = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            lines = b"".join(report.to_json().encode() + b"\n" for report in reports)
            while lines:  # a disk that fills up takes a part, and refuses the rest
                lines = lines[os.write(self._file, lines) :]
            os.fsync(self._file)
        except OSError as error:
            raise LandingError(f"cannot write {self._journal}: {error}") from error
        self._reports += reports
        if len(self._reports) >= JOURNAL_LINES:
            self.close()

    def close(self) -> None:
        """Turn the journal into Parquet; a later report begins the next file."""
        if self._file is None:
            return
        os.close(self._file)
        self._file = None
        land_table(self._folder / f"{self._journal.stem}.parquet", attempts_table(self._reports))
        self._journal.unlink()
        self._reports = []
        self._number += 1

    @property
    def _journal(self) -> Path:
        return self._journals / f"attempts-{self._number:04d}.jsonl"


def attempts_table(reports: Iterable[AttemptReport]) -> pa.Table:
    """Reports as a table of `schemas.tables.ATTEMPTS`."""
    return pa.Table.from_pylist([_attempt_row(report) for report in reports], schema=ATTEMPTS)


def _attempt_row(report: AttemptReport) -> dict[str, Any]:
    busy = report.seconds - report.load_seconds
    return {
        "shard": report.shard,
        "attempt": report.attempt,
        "worker": report.worker,
        "device": report.backend.device,
        "chip": report.backend.chip,
        "mlx": report.backend.mlx,
        "blas": report.backend.blas,
        "started": int(report.started * 1000),
        "seconds": report.seconds,
        "load_seconds": report.load_seconds,
        "prefill_seconds": report.prefill_seconds,
        "draft_seconds": report.draft_seconds,
        "verify_seconds": report.verify_seconds,
        "commit_seconds": report.commit_seconds,
        "peak_bytes": report.peak_bytes,
        "rows": report.tally.rows,
        "failed": report.tally.failed,
        "prompt_tokens": report.tally.prompt_tokens,
        "completion_tokens": report.tally.completion_tokens,
        "tokens_per_second": report.tally.completion_tokens / busy if busy > 0 else 0.0,
        "drafted": sum(report.tally.drafted_by_depth),
        "accepted": sum(report.tally.accepted_by_depth),
        "expected_accepted": report.tally.expected_accepted,
        "accepted_variance": report.tally.accepted_variance,
    }


def read_journal(path: Path) -> list[AttemptReport]:
    """The journal's whole lines; its last one may have been cut by a kill, and then its part file never got its name.

    Raises:
        LandingError: it was written by another version of specmill.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        return [AttemptReport.from_json(line) for line in lines]
    except DecodeError as error:
        raise LandingError(f"{path} is not a journal that this specmill can read: {error}") from error
