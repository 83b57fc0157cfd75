"""One process of a chaos test, with its patience cut short.

`chaos_process.py coordinator OUT RECORDS SHARD_SIZE SAMPLES MODEL`, or `chaos_process.py worker`.

`SPECMILL_BROKER` names the broker. `CHAOS` holds JSON: `patience`, `unacked`, `lease` and `interval` in seconds; `clock`, seconds by which
the wall clock of this process is ahead; `file_bytes`, the size that no file of this process may exceed.
"""

import json
import os
import resource
import sys
import time
import uuid
from pathlib import Path

SETTINGS = json.loads(os.environ.get("CHAOS", "{}"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "queue"))

if ahead := SETTINGS.get("clock"):
    _time = time.time
    time.time = lambda: _time() + ahead  # before anything keeps a reference to it

from producer import coordinator as coordinator_module  # noqa: E402
from producer.manifest_file import read_manifest  # noqa: E402
from producer.run_lock import RunLock  # noqa: E402
from worker import main as worker_main  # noqa: E402
from worker import reconciler  # noqa: E402


def coordinate(out: Path, records: int, shard_size: int, samples: int, model: str) -> None:
    from session import MadeUpShards, make_spec

    reconciler.PATIENCE_SECONDS = SETTINGS.get("patience", reconciler.PATIENCE_SECONDS)
    reconciler.UNACKED_SECONDS = SETTINGS.get("unacked", reconciler.UNACKED_SECONDS)
    coordinator_module.INTERVAL_SECONDS = SETTINGS.get("interval", coordinator_module.INTERVAL_SECONDS)
    if limit := SETTINGS.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    manifest = read_manifest(out)
    run_id = uuid.uuid4().hex if manifest is None else manifest.spec.run_id
    spec = make_spec(records, shard_size, samples, model, run_id=run_id)
    with RunLock(out):
        coordinator_module.Coordinator(
            spec, out, os.environ["SPECMILL_BROKER"], MadeUpShards(spec), lease_seconds=SETTINGS.get("lease", 20.0), max_error_rate=1.0
        ).run()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        sys.argv = ["worker.main", f"--lease-seconds={SETTINGS.get('lease', 20.0)}"]
        worker_main.main()
    else:
        coordinate(Path(sys.argv[2]), *map(int, sys.argv[3:6]), sys.argv[6])
