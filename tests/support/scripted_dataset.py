"""A dataset as a run leaves it, made in this process by the scripted engine: real files, no broker and no worker."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from producer.attempts_log import AttemptsLog
from producer.manifest_file import write_manifest
from producer.run_options import RunOptions
from producer.run_plan import make_plan
from producer.shards import ShardSource
from schemas.manifest import Manifest, ShardRecord
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.tables import content_digest
from worker.engine.completion import completions_to_table, requests_from_blob
from worker.engine.engine import Timings
from worker.engine.scripted import ScriptedEngine
from worker.landing import PartRecord, land_part
from worker.part_names import contract_digest, part_name

BACKEND = Backend(device="cpu", chip="abacus", mlx="-", blas="", row_invariant=True)


def make_dataset(folder: Path, lines: Iterable[dict[str, Any]], *, landed: int | None = None, **options: Any) -> Path:
    """Write `folder/prompts.jsonl` and the dataset `folder/out`; only the first shards with `landed`."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = RunOptions(prompts, folder / "out", **{"model": "scripted", "mtp": "scripted", "shard_size": 8, **options})
    plan = make_plan(asked, lambda _: None)
    spec = replace(plan.spec, run_id="test")
    shards = ShardSource(plan.source)
    engine = ScriptedEngine(spec.model.name)
    (asked.out / "data").mkdir(parents=True)
    log = AttemptsLog(asked.out / "log", asked.out / "log")
    log.open()
    records = []
    for shard in range(spec.shards if landed is None else landed):
        blob = shards.table(shard)
        completions = engine.complete(spec, requests_from_blob(blob, spec), Timings(), lambda _: None)
        table = completions_to_table(blob, completions, logprobs=spec.logprobs)
        tally = sum((completion.tally() for completion in completions), Tally())
        digest = content_digest(table)
        land_part(asked.out, part_name(spec, shard), table, PartRecord(contract_digest(spec), shard, tally.rows, tally.failed, digest))
        records.append(ShardRecord(shard, part_name(spec, shard), tally.rows, tally.failed, digest, BACKEND))
        started = 1e9 + 4.0 * (shard // 2)
        log.append(AttemptReport("test", shard, 1, f"host:{shard % 2}", BACKEND, started, 4.0, 0.5, 0.5, 0.5, 2.0, 0.25, 2**30, tally))
    log.close()
    status = "complete" if len(records) == spec.shards else "running"
    write_manifest(asked.out, Manifest(spec, status, {"python": "3"}, tuple(records)))
    return asked.out
