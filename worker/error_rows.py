"""`error_rows`: the dataset rows of records that no engine can complete."""

import pyarrow as pa

from schemas.errors import RowError
from schemas.run_spec import RunSpec
from worker.engine.completion import Completion, completions_to_table, requests_from_blob


def error_rows(blob: pa.Table, spec: RunSpec, error: RowError) -> pa.Table:
    """One error row per record and sample, schema `row_schema`.

    Args:
        blob: the records, schema `blob_schema`.
        spec: the run.
        error: of every row; its words must be the same in every run, so that part files are.
    """
    completions = [Completion.failed(request, error) for request in requests_from_blob(blob, spec)]
    return completions_to_table(blob, completions, logprobs=spec.logprobs)
