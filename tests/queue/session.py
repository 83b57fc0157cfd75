"""One whole session in a process of its own, for tests that kill it.

`python session.py OUT RECORDS SHARD_SIZE SAMPLES WORKERS MODEL [BROKER]`; without BROKER it has an embedded one.
"""

import contextlib
import sys
from pathlib import Path

import pyarrow as pa

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers
from producer.run_lock import RunLock
from schemas.profile import ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from schemas.tables import blob_schema, table_to_bytes

LEASE_SECONDS = 3.0


class MadeUpShards:
    """Record i has the prompt `prompt i` and an own column."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.blob_schema = blob_schema(prompt=True, messages=False, own=[pa.field("colour", pa.string())])

    def blob(self, shard: int) -> bytes:
        first = shard * self.spec.shard_size
        rows = range(first, first + self.spec.shard_records(shard))
        columns = {
            "row": list(rows),
            "record_id": [f"r{row}" for row in rows],
            "prompt": [f"prompt {row}." for row in rows],
            "colour": ["red" if row % 2 else None for row in rows],
            "bad_input": [None for _ in rows],
        }
        return table_to_bytes(pa.table(columns, schema=self.blob_schema))


def make_spec(records: int, shard_size: int, samples: int = 1, model: str = "scripted", run_id: str = "run1", seed: int = 7) -> RunSpec:
    reference = ModelRef(name=model, digest="0" * 64, files={})
    return RunSpec(
        run_id=run_id,
        model=reference,
        head=reference,
        sampler=SamplerConfig(),
        max_tokens=8,
        stop=(),
        samples=samples,
        seed=seed,
        coupling="rejection",
        profile=ExecutionProfile(slots=4, depth=2),
        raw=False,
        logprobs=False,
        shard_size=shard_size,
        records=records,
        prompts_digest="1" * 64,
    )


def main() -> None:
    out, (records, shard_size, samples, workers), model = Path(sys.argv[1]), map(int, sys.argv[2:6]), sys.argv[6]
    spec = make_spec(records, shard_size, samples, model)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(RunLock(out))
        url = sys.argv[7] if len(sys.argv) > 7 else stack.enter_context(EmbeddedBroker(lock.folder / "broker")).url
        local = stack.enter_context(LocalWorkers(workers, url, lock.folder, lease_seconds=LEASE_SECONDS))
        Coordinator(spec, out, url, MadeUpShards(spec), workers=local, lease_seconds=LEASE_SECONDS).run()


if __name__ == "__main__":
    main()
