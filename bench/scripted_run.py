"""Whole runs of the scripted engine, as the queue's benchmarks need them."""

import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from specs import bench_spec

from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers
from producer.run_lock import RunLock
from producer.run_progress import RunProgress
from schemas.manifest import Manifest
from schemas.run_spec import RunSpec
from schemas.tables import blob_schema, table_to_bytes


def scripted_spec(records: int, shard_size: int, *, model: str = "scripted", max_tokens: int = 32) -> RunSpec:
    """A run of a scripted engine under a new id; every row has 1 to `max_tokens` tokens."""
    return bench_spec(model, max_tokens=max_tokens, records=records, shard_size=shard_size, run_id=uuid.uuid4().hex)


class MadeUpPrompts:
    """Shards of prompts of one line each; a `Shards`."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.blob_schema = blob_schema(prompt=True, messages=False, own=[])

    def blob(self, shard: int) -> bytes:
        first = shard * self._spec.shard_size
        rows = range(first, first + self._spec.shard_records(shard))
        columns = [list(rows), [f"r{row}" for row in rows], [f"Write about number {row}." for row in rows], [None] * len(rows)]
        arrays = [pa.array(column, type_) for column, type_ in zip(columns, self.blob_schema.types, strict=True)]
        return table_to_bytes(pa.Table.from_arrays(arrays, schema=self.blob_schema))


@dataclass
class Landings:
    """When the shards of a run landed.

    Attributes:
        moments: `time.perf_counter()` of each landed shard, as the coordinator showed it.
        generating: `time.perf_counter()` when the first worker was heard generating, or of the first landing.
        cpu_seconds: processor time of the coordinator, workers aside.
        manifest: of the finished run.
    """

    moments: list[float] = field(default_factory=list)
    generating: float = 0.0
    cpu_seconds: float = 0.0
    manifest: Manifest | None = None


class _Clocked(Coordinator):
    """A coordinator that notes when shards land."""

    landings: Landings

    def _land(self, found: list) -> None:  # type: ignore[type-arg]
        super()._land(found)
        self.landings.moments += [time.perf_counter()] * len(found)


def run_scripted(spec: RunSpec, out: Path, broker_url: str, workers: LocalWorkers) -> Landings:
    """Make the whole dataset with workers that are there already."""
    landings = Landings()

    def hear(progress: RunProgress) -> None:
        if not landings.generating and progress.phase == "generating":
            landings.generating = time.perf_counter()

    coordinator = _Clocked(spec, out, broker_url, MadeUpPrompts(spec), hear, workers=workers)
    coordinator.landings = landings
    with RunLock(out):
        started = time.process_time()
        landings.manifest = coordinator.run()
        landings.cpu_seconds = time.process_time() - started
    return landings
