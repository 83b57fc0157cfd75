"""`ErrorRate`: stops a run that is plainly misconfigured before it fills a dataset with error rows."""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa

from schemas.errors import BadInputError, TooManyErrorsError
from worker.run_terms import DEFAULT_MAX_ERROR_RATE

MIN_ROWS = 32  # a few odd prompts at the beginning say nothing


class ErrorRate:
    """Failed rows of one session, by kind. Bad lines that were kept on purpose do not count."""

    def __init__(self, limit: float = DEFAULT_MAX_ERROR_RATE) -> None:
        """`limit` is the largest share of failed rows, 0 to 1; 1 never stops."""
        self._limit = limit
        self._rows = 0
        self._failures: Counter[str] = Counter()
        self._example = ""

    def add(self, rows: int, failures: Mapping[str, int], example: str) -> None:
        """Count the rows of a shard that has come back.

        Args:
            rows: all rows of it.
            failures: error type → rows.
            example: one error, as text.

        Raises:
            TooManyErrorsError: more of the rows so far have failed than the limit allows.
        """
        judged = {kind: count for kind, count in failures.items() if kind != BadInputError.__name__}
        self._rows += rows - failures.get(BadInputError.__name__, 0)
        self._failures.update(judged)
        if judged:
            self._example = example
        failed = self._failures.total()
        if self._rows >= MIN_ROWS and failed > self._limit * self._rows:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in self._failures.most_common())
            raise TooManyErrorsError(
                f"{failed:,} of the first {self._rows:,} rows have failed ({kinds}), more than --max-error-rate {self._limit:g} allows; "
                f"the last one: {self._example}. What has landed stays, and the same command goes on once the cause is mended; "
                "--max-error-rate 1 never stops"
            )


def failures_of(table: pa.Table) -> tuple[dict[str, int], str]:
    """Error type → rows of a shard, and one of the errors as text, one that is no bad line if there is such a one."""
    errors = [row for row in table.column("error").to_pylist() if row is not None]
    shown = [error for error in errors if error["type"] != BadInputError.__name__] or errors
    return dict(Counter(error["type"] for error in errors)), f"{shown[-1]['type']}: {shown[-1]['message']}" if shown else ""
