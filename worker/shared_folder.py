"""`SharedFolder`: a dataset's folder that workers see too, so that they land their parts themselves and no row goes through the broker.

A worker writes only below the roots that it was started with, and only into a folder whose manifest names the run. Where it may not, or
does not see the folder, it delivers through the broker as ever.
"""

import json
import logging
from pathlib import Path

import pyarrow as pa

from schemas.run_spec import RunSpec
from schemas.tables import content_digest
from worker.landing import PartRecord, land_part
from worker.part_names import DATA, contract_digest, part_name

logger = logging.getLogger(__name__)


class SharedFolder:
    """The folder of one run, as one worker sees it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def find(cls, path: str | None, run_id: str, roots: tuple[Path, ...]) -> "SharedFolder | None":
        """The run's folder, if it is shared, allowed and there.

        Args:
            path: where the coordinator says it is, or None for a run that is not shared.
            run_id: the run.
            roots: the folders that this worker may write below.
        """
        if path is None or not roots:
            return None
        folder = Path(path).resolve()  # a link must not lead out of a root
        if not any(folder.is_relative_to(root.resolve()) for root in roots):
            logger.warning("run %s: %s lies below none of this worker's shared folders; its rows go through the broker", run_id, path)
            return None
        try:
            found = json.loads((folder / "manifest.json").read_bytes())["spec"]["run_id"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if found != run_id or (folder / DATA).resolve() != folder / DATA:
            logger.warning("run %s: %s is not its folder on this machine; its rows go through the broker", run_id, path)
            return None
        return cls(folder)

    def land(self, spec: RunSpec, shard: int, table: pa.Table) -> None:
        """Write the shard's part file, whole or not at all; when it is there already, it must be the same.

        Raises:
            LandingError: it cannot be written, or the name holds something else.
        """
        failed = table.num_rows - table.column("error").null_count
        digest = content_digest(table)
        record = PartRecord(contract=contract_digest(spec), shard=shard, rows=table.num_rows, failed=failed, content_digest=digest)
        land_part(self._folder, part_name(spec, shard), table, record)
