"""The engine child behind its pipes: outcomes, crashes, cancelling, and no process left behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from engine_support import make_spec

from schemas.errors import EngineCrashedError, ModelError, RunCancelledError
from schemas.profile import ExecutionProfile
from schemas.progress import Tally
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from schemas.tables import blob_schema, row_schema, table_from_bytes, table_to_bytes
from worker.engine.client import EngineProcess, ShardOutcome


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    process = EngineProcess()
    yield process
    process.close()


def scripted_spec(options: str = "", *, samples: int = 2) -> RunSpec:
    name = f"scripted:{options}" if options else "scripted"
    return RunSpec(
        run_id="test",
        model=ModelRef(name, "-", {}),
        head=ModelRef("head", "-", {}),
        sampler=SamplerConfig(),
        max_tokens=8,
        stop=(),
        samples=samples,
        seed=1,
        coupling="rejection",
        profile=ExecutionProfile(),
        raw=False,
        logprobs=True,
        shard_size=4,
        records=4,
        prompts_digest="",
    )


def make_blob(prompts: list[str]) -> pa.Table:
    schema = blob_schema(prompt=True, messages=False, own=[pa.field("topic", pa.string())])
    rows = [{"row": i, "record_id": f"r{i}", "prompt": prompt, "topic": "t", "bad_input": None} for i, prompt in enumerate(prompts)]
    return pa.Table.from_pylist(rows, schema=schema)


def generate(engine: EngineProcess, spec: RunSpec, blob: pa.Table) -> ShardOutcome:
    return engine.generate(spec, 0, table_to_bytes(blob), on_tally=lambda tally: None, stopped=lambda: False)


def test_rows_come_back_in_order_with_the_users_columns(engine: EngineProcess) -> None:
    blob = make_blob(["one", "two", "three"])
    outcome = generate(engine, scripted_spec(), blob)
    rows = table_from_bytes(outcome.rows)
    assert rows.schema == row_schema(blob.schema, logprobs=True)
    assert [(row["record_id"], row["sample"]) for row in rows.to_pylist()] == [(f"r{i}", s) for i in range(3) for s in range(2)]
    assert outcome.tally.rows == 6
    assert outcome.tally.completion_tokens == sum(rows.column("completion_tokens").to_pylist())
    assert rows.column("topic").to_pylist() == ["t"] * 6


def test_the_child_persists_between_shards(engine: EngineProcess) -> None:
    generate(engine, scripted_spec(), make_blob(["one"]))
    first = engine.pid
    generate(engine, scripted_spec(), make_blob(["two"]))
    assert engine.pid == first


def test_a_crash_is_told_and_the_next_shard_gets_a_new_child(engine: EngineProcess) -> None:
    with pytest.raises(EngineCrashedError, match="exit code 139"):
        generate(engine, scripted_spec("crash_on=boom"), make_blob(["fine", "boom"]))
    assert generate(engine, scripted_spec(), make_blob(["fine"])).tally.rows == 2


def test_a_killed_child_is_told_by_its_signal(engine: EngineProcess) -> None:
    generate(engine, scripted_spec(), make_blob(["one"]))
    assert engine.pid is not None

    def kill(tally: Tally) -> None:
        os.kill(engine.pid, signal.SIGKILL)

    with pytest.raises(EngineCrashedError, match="SIGKILL"):
        engine.generate(scripted_spec("hang_on=one"), 0, table_to_bytes(make_blob(["one"])), on_tally=kill, stopped=lambda: False)


def test_stopping_gives_the_shard_up_and_keeps_the_child(engine: EngineProcess) -> None:
    started = time.monotonic()
    with pytest.raises(RunCancelledError):
        engine.generate(
            scripted_spec("hang_on=one"),
            0,
            table_to_bytes(make_blob(["one"])),
            on_tally=lambda tally: None,
            stopped=lambda: time.monotonic() > started + 0.2,
        )
    assert time.monotonic() - started < 5
    pid = engine.pid
    assert generate(engine, scripted_spec("hang_on=one"), make_blob(["two"])).tally.rows == 2
    assert engine.pid == pid


def test_what_the_child_refuses_is_the_same_error_here(engine: EngineProcess) -> None:
    with pytest.raises(ModelError, match="'speed'"):
        generate(engine, scripted_spec("speed=1"), make_blob(["one"]))


def test_close_leaves_no_process(engine: EngineProcess) -> None:
    generate(engine, scripted_spec(), make_blob(["one"]))
    pid = engine.pid
    assert pid is not None
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_real_model_in_the_child_yields_rows_and_refuses_other_files(engine: EngineProcess, tiny: tuple[Path, Path]) -> None:
    spec = make_spec(*tiny, max_tokens=6, samples=2)
    outcome = generate(engine, spec, make_blob(["hello", "x" * 700]))
    rows = table_from_bytes(outcome.rows).to_pylist()
    assert [row["error"]["type"] if row["error"] else None for row in rows] == [None, None, "PromptTooLongError", "PromptTooLongError"]
    assert all(row["completion_tokens"] == 6 or row["finish_reason"] == "stop" for row in rows[:2])
    assert outcome.tally.failed == 2
    assert outcome.backend.device in ("cpu", "gpu")
    assert min(outcome.load_seconds, outcome.verify_seconds, outcome.peak_bytes) > 0
    other = make_spec(*tiny)
    object.__setattr__(other, "model", ModelRef(spec.model.name, "0" * 64, {**spec.model.files, "model.safetensors": "0" * 64}))
    with pytest.raises(ModelError, match=r"differ: model\.safetensors"):
        generate(engine, other, make_blob(["hello"]))
