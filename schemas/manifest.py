"""`Manifest`: `OUT/manifest.json`, from which a run can be resumed, judged and re-created."""

from dataclasses import dataclass

from schemas.depth_trial import DepthTrial
from schemas.profile import Backend
from schemas.run_spec import RunSpec
from schemas.wire import Wire

STATUSES = ("running", "complete", "cancelled")


@dataclass(frozen=True)
class ShardRecord(Wire):
    """One landed part file.

    Attributes:
        shard: shard index.
        file: path relative to the dataset's folder, `data/part-00000.parquet`.
        rows: output rows in the file, records × samples.
        failed: error rows among them.
        content_digest: sha256 over the logical rows (`schemas.tables.content_digest`).
        backend: where the rows were computed.
    """

    shard: int
    file: str
    rows: int
    failed: int
    content_digest: str
    backend: Backend


@dataclass(frozen=True)
class Manifest(Wire):
    """The dataset's own description.

    Attributes:
        spec: the run specification, digests included.
        status: running, complete or cancelled.
        versions: library → version, of the coordinator that wrote the file; `certificate` is the digest of what `specmill doctor` found
            there, if it was run.
        shards: landed shards in ascending order.
        depth_trials: what `--depth auto` measured, or `specmill tune` for it, before `spec.profile.depth` was frozen; empty when the depth
            was given.
    """

    spec: RunSpec
    status: str
    versions: dict[str, str]
    shards: tuple[ShardRecord, ...]
    depth_trials: tuple[DepthTrial, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}; received {self.status!r}")
