"""The queue's peer: Celery as its first page shows it, one task per shard, a result backend, no ledger.

A worker is `python -m celery -A plain_celery worker`, in this folder; PLAIN_CELERY_URL says where the broker is. The task does what the
product's engine does with a shard: rows of the scripted engine for a blob.
"""

import base64
import os

from celery import Celery

from schemas.run_spec import RunSpec
from schemas.tables import table_from_bytes, table_to_bytes
from worker.engine.completion import completions_to_table, requests_from_blob
from worker.engine.engine import Timings
from worker.engine.scripted import ScriptedEngine

URL = os.environ.get("PLAIN_CELERY_URL", "redis://127.0.0.1:6379/0")
app = Celery("plain", broker=URL, backend=URL)


@app.task
def generate(spec_json: str, blob: str) -> str:
    """Rows of a shard, Arrow IPC in base64 as the blob is."""
    spec = RunSpec.from_json(spec_json)
    table = table_from_bytes(base64.b64decode(blob))
    completions = ScriptedEngine(spec.model.name).complete(spec, requests_from_blob(table, spec), Timings(), lambda _: None)
    return base64.b64encode(table_to_bytes(completions_to_table(table, completions, logprobs=spec.logprobs))).decode()
