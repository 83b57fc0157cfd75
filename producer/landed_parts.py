"""`find_landed`: what has landed in the folder of an unfinished run, the parts included that its manifest does not list yet.

The manifest is written every few seconds, so a session that was killed leaves parts behind that it does not name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from producer.attempts_log import read_journal
from producer.local_side import journal_folder
from producer.part_files import check_part
from schemas.errors import LandingError
from schemas.manifest import Manifest, ShardRecord
from schemas.profile import Backend
from schemas.progress import AttemptReport
from worker.landing import PartRecord
from worker.part_names import DATA, contract_digest, part_name
from worker.remote_path import Place, listed

UNKNOWN_BACKEND = Backend(device="-", chip="-", mlx="-", blas="", row_invariant=False)


@dataclass(frozen=True)
class Landed:
    """What a reader of an unfinished run may count.

    Attributes:
        records: landed shards in ascending order.
        uncounted: a line for each file in `data/` that does not count, and for each that should be there.
    """

    records: tuple[ShardRecord, ...]
    uncounted: tuple[str, ...]


def find_landed(out: Place, manifest: Manifest) -> Landed:
    """Look through `OUT/data`; of a part that the manifest lists, only its presence is looked at.

    Args:
        out: the dataset's folder.
        manifest: what lies in it.
    """
    missing = {shard.file: shard for shard in manifest.shards}
    records: list[ShardRecord] = []
    uncounted: list[str] = []
    backends: dict[int, Backend] | None = None
    digest = contract_digest(manifest.spec)
    for path in listed(out / DATA, "*.parquet"):
        known = missing.pop(f"{DATA}/{path.name}", None)
        if known is not None:
            records.append(known)
            continue
        try:
            part = check_part(path, manifest.spec, digest)
        except LandingError as error:
            uncounted.append(str(error))
            continue
        backends = backends_of(_journal(out)) if backends is None else backends
        records.append(shard_record(part, part_name(manifest.spec, part.shard), backends.get(part.shard, UNKNOWN_BACKEND)))
    uncounted += [f"{out / file} is gone, though the manifest lists it" for file in missing]
    return Landed(tuple(sorted(records, key=lambda record: record.shard)), tuple(uncounted))


def shard_record(part: PartRecord, file: str, backend: Backend) -> ShardRecord:
    """A part file as manifests list it."""
    return ShardRecord(part.shard, file, part.rows, part.failed, part.content_digest, backend)


def backends_of(reports: Iterable[AttemptReport]) -> dict[int, Backend]:
    """Shard → where it was computed."""
    return {report.shard: report.backend for report in reports}


def _journal(out: Place) -> list[AttemptReport]:
    """What the sessions that are not closed have written down."""
    reports: list[AttemptReport] = []
    for path in sorted(journal_folder(out).glob("attempts-*.jsonl")):
        try:
            reports += read_journal(path)
        except FileNotFoundError:  # a session that goes on has made Parquet of it meanwhile
            continue
    return reports
