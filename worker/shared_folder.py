"""`SharedFolder`: a dataset's folder that workers see too, so that they land their parts themselves and no row goes through the broker.

It is a folder of a disk that all see, or a place in an object store. A worker writes only below the roots that it was started with, and
only into a folder whose manifest names the run. Where it may not, or does not see the folder, it delivers through the broker as ever.
"""

import json
import logging
from dataclasses import dataclass

import pyarrow as pa

from schemas.errors import InputError, LandingError, UnwritableError
from schemas.run_spec import RunSpec
from schemas.tables import content_digest
from worker.landing import PartRecord, land_part
from worker.part_names import DATA, MANIFEST, contract_digest, input_name, part_name
from worker.remote_path import Place, RemotePath, is_below, place_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SharedFolder:
    """The folder of one run, as one worker sees it.

    Attributes:
        folder: where it is.
        run_id: the run.
        path: where the coordinator says it is.
    """

    folder: Place
    run_id: str
    path: str

    @classmethod
    def find(cls, path: str | None, run_id: str, roots: tuple[Place, ...]) -> "SharedFolder | None":
        """The run's folder, if it is shared, allowed and there.

        Args:
            path: where the coordinator says it is, or None for a run that is not shared.
            run_id: the run.
            roots: the folders that this worker may write below.
        """
        if path is None or not roots:
            return None
        folder = _allowed(path, roots)
        if folder is None:
            logger.warning("run %s: %s lies below none of this worker's shared folders; its rows go through the broker", run_id, path)
            return None
        problem = ""
        try:
            found = json.loads((folder / MANIFEST).read_bytes())["spec"]["run_id"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            found, problem = None, f" ({error})" if isinstance(folder, RemotePath) else ""
        if found != run_id or (folder / DATA).resolve() != folder / DATA:
            logger.warning("run %s: %s is not its folder on this machine%s; its rows go through the broker", run_id, path, problem)
            return None
        return cls(folder, run_id, path)

    def input(self, shard: int) -> bytes:
        """The input of a shard for which the broker had no room, Arrow IPC.

        Raises:
            LandingError: it cannot be read.
        """
        path = self.folder / input_name(shard)
        try:
            return path.read_bytes()
        except OSError as error:
            raise LandingError(f"the input {path} cannot be read: {error}") from error

    def land(self, spec: RunSpec, shard: int, table: pa.Table) -> bool:
        """Write the shard's part file, whole or not at all; when it is there already, it must be the same.

        Returns:
            Whether it is there: False when disk or store do not take it now.

        Raises:
            LandingError: the name holds something else.
        """
        failed = table.num_rows - table.column("error").null_count
        digest = content_digest(table)
        record = PartRecord(contract=contract_digest(spec), shard=shard, rows=table.num_rows, failed=failed, content_digest=digest)
        try:
            land_part(self.folder, part_name(spec, shard), table, record)
        except (UnwritableError, OSError) as error:
            logger.warning("run %s: shard %d cannot be landed here and goes through the broker: %s", self.run_id, shard, error)
            return False
        return True


def _allowed(path: str, roots: tuple[Place, ...]) -> Place | None:
    """The place below one of the roots; None where there is none. Links must not lead out of a root."""
    try:
        folder = place_of(path).resolve()
    except InputError:
        return None
    return folder if any(is_below(folder, root) for root in roots) else None
