"""What the files of a dataset are called, and what ties its part files to their run."""

import hashlib

from schemas.run_spec import RunSpec
from schemas.wire import canonical_json

MANIFEST = "manifest.json"
CARD = "README.md"
DATA = "data"
LOG = "log"
INPUTS = "inputs"  # of a submitted run, those for which the broker has no room; gone when the run is complete


def part_name(spec: RunSpec, shard: int) -> str:
    """A shard's file relative to the dataset's folder; as wide as the last shard needs, so that names sort in input order."""
    width = max(5, len(str(max(spec.shards - 1, 0))))
    return f"{DATA}/part-{shard:0{width}d}.parquet"


def input_name(shard: int) -> str:
    """The file with a shard's input, Arrow IPC, relative to the dataset's folder."""
    return f"{INPUTS}/shard-{shard:05d}.arrow"


def contract_digest(spec: RunSpec) -> str:
    """sha256 hex over the canonical contract; every part file of a run carries it."""
    return hashlib.sha256(canonical_json(spec.contract()).encode("utf-8", "surrogatepass")).hexdigest()
