"""`rerun`: a dataset made again from its own folder: spec from the manifest, prompts from its rows, no prompts file."""

import contextlib
import shlex
import uuid
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.dataset import Dataset, blob_of
from producer.dataset_card import dataset_card, write_card
from producer.environment import look_around
from producer.local_workers import LocalWorkers, WorkerSettings
from producer.manifest_file import read_manifest
from producer.progress_display import Display, log_to
from producer.run_lock import RunLock
from producer.run_summary import RunSummary
from producer.stop_signal import StopSignal
from schemas.errors import InputError, ModelError
from schemas.profile import ANY
from schemas.tables import table_to_bytes
from worker.part_names import CARD
from worker.remote_path import Place, RemotePath


@dataclass(frozen=True)
class DatasetShards:
    """The inputs of a dataset's run, taken from its rows.

    Attributes:
        dataset: complete.
    """

    dataset: Dataset

    @property
    def blob_schema(self) -> pa.Schema:
        """The schema of every blob."""
        return self._table(0).schema

    def blob(self, shard: int) -> bytes:
        """A shard's input as an Arrow IPC stream."""
        return table_to_bytes(self._table(shard))

    def _table(self, shard: int) -> pa.Table:
        rows = self.dataset.table(self.dataset.manifest.shards[shard]).replace_schema_metadata(None)
        if "n" in self.dataset.manifest.spec.per_row:
            table = blob_of(rows)  # every completion is asked for by itself
        else:
            table = blob_of(rows.filter(pc.equal(rows["sample"], 0))).drop_columns(["sample"])
        return table.cast(pa.schema([field.with_type(_as_made(field.type)) for field in table.schema]))


def _as_made(kind: pa.DataType) -> pa.DataType:
    """A column's type with Arrow's own names for the items of lists: Parquet gives them other names, and names are bytes of a part file."""
    if pa.types.is_list(kind):
        return pa.list_(_as_made(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_as_made(field.type)) for field in fields])
    return kind


def rerun(source: Place, out: Place, *, workers: int, broker: str | None, trust_remote_code: bool, display: Display) -> bool:
    """Make the dataset of `source` again in `out`, or go on with that.

    Args:
        source: a complete dataset.
        out: a new folder, or one that an earlier call began.
        workers: local worker processes.
        broker: an external broker, or None for an embedded one.
        trust_remote_code: code that comes with the model may run on this machine.
        display: for notes and progress; the main thread's.

    Returns:
        Whether it is complete; False when Ctrl-C ended the session first.

    Raises:
        InputError: `source` is not complete, or `out` is.
        ModelError: model, head or draft model here are not the manifest's.
        SpecmillError: as a run may end.
    """
    dataset = Dataset.open(source)
    if dataset.manifest.status != "complete":
        raise InputError(f"{source} is not complete ({dataset.manifest.status}); finish its run first")
    environment = look_around(dataset.manifest, model=None, head=None, draft_model=None, note=display.note)
    if problem := environment.model_problem or environment.drafter_problem:
        raise ModelError(problem)
    for note in environment.notes:
        display.note(f"not as then: {note}")
    begun = read_manifest(out) if out.is_dir() else None
    if begun is not None and begun.status == "complete":  # nothing would be generated, and nothing proved
        raise InputError(f"{out} is complete already; --out must be new or unfinished (specmill diff {source} {out} compares the two)")
    run_id = begun.spec.run_id if begun is not None else uuid.uuid4().hex
    spec = replace(dataset.manifest.spec, run_id=run_id, backend=ANY)  # on whatever machine this is; diff tells what that changed
    with contextlib.ExitStack() as stack:
        stack.enter_context(log_to(display))
        stop = stack.enter_context(StopSignal(lambda: display.note("stopping; what has landed is kept"), display.close))
        lock = stack.enter_context(RunLock(out))
        broker_url = broker or stack.enter_context(EmbeddedBroker(lock.folder / "broker")).url
        roots = (out,) if isinstance(out, RemotePath) else ()
        settings = WorkerSettings(roots=roots, trust_remote_code=trust_remote_code)
        local = stack.enter_context(LocalWorkers(workers, broker_url, lock.folder, settings)) if workers else None
        coordinator = Coordinator(spec, out, broker_url, DatasetShards(dataset), display.update, workers=local, max_error_rate=1.0)
        manifest = coordinator.run(stop)
        display.close()
    if manifest.status != "complete":
        return False
    command = shlex.join(["specmill", "rerun", str(source), "--out", str(out)])
    write_card(out / CARD, dataset_card(manifest, RunSummary.of_dataset(out, manifest), command))
    return True
