"""`ErrorRate`: stops a run that is plainly misconfigured before it fills a dataset with error rows."""

from collections import Counter

import pyarrow as pa

from producer.run_options import DEFAULT_MAX_ERROR_RATE
from schemas.errors import BadInputError, TooManyErrorsError

MIN_ROWS = 32  # a few odd prompts at the beginning say nothing


class ErrorRate:
    """Failed rows of one session, by kind. Bad lines that were kept on purpose do not count."""

    def __init__(self, limit: float = DEFAULT_MAX_ERROR_RATE) -> None:
        """`limit` is the largest share of failed rows, 0 to 1; 1 never stops."""
        self._limit = limit
        self._rows = 0
        self._failures: Counter[str] = Counter()
        self._example = ""

    def add(self, table: pa.Table) -> None:
        """Count the rows of a shard that has landed.

        Raises:
            TooManyErrorsError: more of the rows so far have failed than the limit allows.
        """
        errors = [row for row in table.column("error").to_pylist() if row is not None]
        judged = [error for error in errors if error["type"] != BadInputError.__name__]
        self._rows += table.num_rows - (len(errors) - len(judged))
        self._failures.update(error["type"] for error in judged)
        if judged:
            self._example = f"{judged[-1]['type']}: {judged[-1]['message']}"
        failed = self._failures.total()
        if self._rows >= MIN_ROWS and failed > self._limit * self._rows:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in self._failures.most_common())
            raise TooManyErrorsError(
                f"{failed:,} of the first {self._rows:,} rows have failed ({kinds}), more than --max-error-rate {self._limit:g} allows; "
                f"the last one: {self._example}"
            )
