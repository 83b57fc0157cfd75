"""Whole runs with a scripted engine: the laws of the dataset, of the ledger and of the broker's keys."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
import redis

from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers
from producer.manifest_file import read_manifest
from producer.run_progress import RunProgress
from schemas.errors import DecodeError, EngineError, LandingError, ModelError, RunMismatchError, TooManyErrorsError
from schemas.shard import ShardMessage
from worker.app import QUEUE, TASK, make_app
from worker.ledger import Ledger

Run = Callable[..., SimpleNamespace]


def rows_of(out: Path) -> pa.Table:
    """The dataset as a reader without specmill sees it."""
    files = sorted(str(path) for path in (out / "data").glob("*.parquet"))
    return pds.dataset(files, format="parquet").to_table().replace_schema_metadata(None)


def run_keys(client: redis.Redis, run: SimpleNamespace) -> list[bytes]:
    return list(client.scan_iter(f"run:{run.spec.run_id}:*"))


def test_the_dataset_holds_every_record_and_sample_once_in_order(run_here: Run, tmp_path: Path, help_: SimpleNamespace) -> None:
    run = run_here(tmp_path, records=11, shard_size=4, samples=2)
    rows = rows_of(tmp_path)
    assert rows["record_id"].to_pylist() == [f"r{record}" for record in range(11) for _ in range(2)]
    assert rows["sample"].to_pylist() == [0, 1] * 11
    assert rows["colour"].to_pylist() == ["red" if record % 2 else None for record in range(11) for _ in range(2)]
    assert rows["error"].null_count == 22
    assert all(rows["token_ids"].to_pylist())
    assert run.manifest.status == "complete"
    assert [(shard.shard, shard.rows, shard.failed) for shard in run.manifest.shards] == [(0, 8, 0), (1, 8, 0), (2, 6, 0)]
    assert read_manifest(tmp_path) == run.manifest
    assert help_.stray_files(tmp_path) == []


def test_shard_size_and_number_of_workers_never_change_a_row(
    run_here: Run, tmp_path: Path, mark: str, session: ModuleType, help_: SimpleNamespace
) -> None:
    with EmbeddedBroker(tmp_path / "b") as broker, LocalWorkers(1, broker.url, tmp_path / "w") as alone:
        for name, shard_size in (("one", 4), ("one-large", 16)):
            spec = session.make_spec(20, shard_size, 2)
            Coordinator(spec, tmp_path / name, broker.url, session.MadeUpShards(spec), workers=alone).run()
    run_here(tmp_path / "two", 20, 4, 2)
    run_here(tmp_path / "two-tiny", 20, 1, 2)
    assert help_.files_of(tmp_path / "one") == help_.files_of(tmp_path / "two")
    expected = rows_of(tmp_path / "one")
    for name in ("one-large", "two", "two-tiny"):
        assert rows_of(tmp_path / name).equals(expected)


def test_the_ledger_balances_at_every_moment_and_every_key_has_a_time_to_live(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    seen: list[RunProgress] = []

    def watch(progress: RunProgress) -> None:
        seen.append(progress)
        forever = [key for key in client.scan_iter("run:*") if client.ttl(key) == -1]
        assert forever == []

    run = run_here(tmp_path, 24, 2, model="scripted:seconds=0.03,fail_on=prompt 3.", on_progress=watch)
    assert len(seen) >= 3
    for progress in seen:
        assert progress.rows_total == 24
        assert progress.rows_ok + progress.rows_failed <= 24
        assert progress.in_flight <= 8
    counts = run.coordinator.counts()
    assert (counts.total, counts.ok, counts.failed, counts.cancelled, counts.pending) == (24, 23, 1, 0, 0)
    assert seen[-1].phase == "done"
    assert (seen[-1].tally.rows, seen[-1].tally.failed, seen[-1].shards_done) == (24, 1, 12)
    assert seen[-1].tally.completion_tokens == sum(len(tokens) for tokens in rows_of(tmp_path)["token_ids"].to_pylist())
    assert {view.name.split(":")[0] for view in seen[-1].workers} != set()
    assert run_keys(client, run) == []


def test_progress_shows_rows_before_their_shard_has_landed(run_here: Run, tmp_path: Path) -> None:
    seen: list[RunProgress] = []
    run_here(tmp_path, 8, 8, model="scripted:seconds=0.4", on_progress=seen.append)
    early = [progress for progress in seen if progress.shards_done == 0 and progress.tally.rows > 0]
    assert early
    assert early[-1].tokens_per_second > 0
    assert early[-1].eta_seconds is not None
    assert [view.shard for progress in early for view in progress.workers if view.tally.rows] == [0] * len(early)
    assert seen[0].phase == "loading model"


def test_a_stopped_run_resumes_to_the_same_files(run_here: Run, client: redis.Redis, tmp_path: Path, help_: SimpleNamespace) -> None:
    run_here(tmp_path / "whole", 40, 2)
    progress: list[RunProgress] = []
    stopped = run_here(
        tmp_path / "out",
        40,
        2,
        model="scripted",
        on_progress=progress.append,
        stop=lambda: len(list((tmp_path / "out" / "data").glob("part-*"))) >= 3,
    )
    assert stopped.manifest.status == "cancelled"
    assert 3 <= len(stopped.manifest.shards) < 20
    counts = stopped.coordinator.counts()
    assert counts.total == counts.ok + counts.failed + counts.cancelled + counts.pending
    assert counts.cancelled == 40 - counts.ok
    assert progress[-1].phase == "cancelling"
    assert run_keys(client, stopped) == []
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").iterdir()}
    resumed = run_here(tmp_path / "out", 40, 2)
    assert resumed.manifest.status == "complete"
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert help_.files_of(tmp_path / "out") == help_.files_of(tmp_path / "whole")
    logged = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "out" / "log").glob("*.parquet"))
    assert sorted(logged["shard"].to_pylist()) == list(range(20))


def test_somebody_elses_cancel_flag_ends_the_run(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    def cancel(progress: RunProgress) -> None:
        if progress.shards_done >= 1:
            for key in client.scan_iter("run:*:spec"):
                Ledger(client, key.decode().split(":")[1]).cancel()

    run = run_here(tmp_path, 200, 1, model="scripted:seconds=0.02", on_progress=cancel)
    assert run.manifest.status == "cancelled"
    assert run_keys(client, run) == []


def test_a_resume_trusts_part_files_alone(run_here: Run, tmp_path: Path, help_: SimpleNamespace) -> None:
    run_here(tmp_path, 9, 3)
    before = help_.files_of(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "data" / "part-00001.parquet").unlink()
    run = run_here(tmp_path, 9, 3)
    assert help_.files_of(tmp_path) == before
    assert [record.backend.chip == "-" for record in run.manifest.shards] == [True, False, True]


def test_a_finished_run_run_again_does_nothing(run_here: Run, tmp_path: Path) -> None:
    first = run_here(tmp_path, 6, 3)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()}
    again = run_here(tmp_path, 6, 3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()} == times
    assert again.manifest.shards == first.manifest.shards
    assert len(list((tmp_path / "log").iterdir())) == 1


def test_another_run_or_a_foreign_file_in_the_folder_is_refused(run_here: Run, tmp_path: Path) -> None:
    run_here(tmp_path, 6, 3)
    with pytest.raises(RunMismatchError, match="shard_size: 3 / 2"):
        run_here(tmp_path, 6, 2)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(LandingError, match="part-00000"):
        run_here(tmp_path, 6, 2)
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_duplicate_foreign_and_senseless_messages_change_nothing(
    run_here: Run, broker: EmbeddedBroker, client: redis.Redis, tmp_path: Path, session: ModuleType, help_: SimpleNamespace
) -> None:
    run_here(tmp_path / "plain", 12, 2)
    app = make_app(broker.url)
    sent = []

    def disturb(progress: RunProgress) -> None:
        (key,) = client.scan_iter("run:*:spec")
        run_id = key.decode().split(":")[1]
        if len(sent) < 40:
            for shard in (*range(6), 10**9):
                app.send_task(TASK, args=(ShardMessage(run_id, shard).encode(),), queue=QUEUE)
            for arguments in ((ShardMessage("other", 0).encode(),), ({"v": 99},), ("text",), ()):
                app.send_task(TASK, args=arguments, queue=QUEUE)
            app.send_task("no.such.task", queue=QUEUE)
            sent.append(run_id)

    run = run_here(tmp_path / "out", 12, 2, model="scripted", on_progress=disturb)
    app.close()
    assert sent
    assert run.manifest.status == "complete"
    assert help_.files_of(tmp_path / "out") == help_.files_of(tmp_path / "plain")
    help_.poll(lambda: client.llen(QUEUE) == 0, what="an empty queue")
    assert list(client.scan_iter("run:*")) == []


@pytest.mark.parametrize("garbage", [b"\xff\xfe not json", b'{"json": "but no message"}', b"[]"])
def test_garbage_on_the_queue_does_not_end_a_run(
    run_here: Run, client: redis.Redis, workers: LocalWorkers, tmp_path: Path, garbage: bytes, help_: SimpleNamespace
) -> None:
    before = workers.pids
    for _ in range(3):
        client.lpush(QUEUE, garbage)
    run = run_here(tmp_path, 6, 1)
    assert run.manifest.status == "complete"
    help_.poll(lambda: client.llen(QUEUE) == 0, what="an empty queue")
    assert workers.pids == before


def test_an_engine_that_dies_on_one_prompt_costs_that_row_only(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    run_here(tmp_path / "plain", 12, 4, samples=2)
    run = run_here(tmp_path / "out", 12, 4, samples=2, model="scripted:crash_on=prompt 5.")
    assert run.manifest.status == "complete"
    assert run.coordinator.quarantined == (1,)
    counts = run.coordinator.counts()
    assert (counts.ok, counts.failed, counts.pending) == (22, 2, 0)
    found, expected = rows_of(tmp_path / "out").to_pylist(), rows_of(tmp_path / "plain").to_pylist()
    failed = [row for row in found if row["error"] is not None]
    assert [(row["record_id"], row["sample"]) for row in failed] == [("r5", 0), ("r5", 1)]
    assert {row["error"]["type"] for row in failed} == {"EngineCrashedError"}
    assert {row["finish_reason"] for row in failed} == {"error"}
    assert [row for row in found if row["error"] is None] == [row for row in expected if row["record_id"] != "r5"]
    assert run_keys(client, run) == []


def test_an_engine_that_dies_on_everything_ends_the_session_and_spoils_nothing(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"completed none; the last time: worker .*exit code 139"):
        run_here(tmp_path, 12, 2, model="scripted:crash_on=prompt")
    assert list((tmp_path / "data").iterdir()) == []
    assert list(client.scan_iter("run:*")) == []


def test_a_dataset_of_one_poisonous_shard_ends_too(run_here: Run, tmp_path: Path) -> None:
    run = run_here(tmp_path, 2, 2, model="scripted:crash_on=prompt 0.", max_error_rate=1.0)
    assert run.manifest.status == "complete"
    assert run.coordinator.counts().failed == 1


def test_a_run_that_is_plainly_misconfigured_stops_early_and_says_why(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    with pytest.raises(TooManyErrorsError, match=r"of the first \d+ rows .*NonFiniteLogitsError.*--max-error-rate 0.5"):
        run_here(tmp_path / "out", 400, 2, model="scripted:fail_on=prompt")
    assert len(list((tmp_path / "out" / "data").iterdir())) < 40
    assert list(client.scan_iter("run:*")) == []
    assert run_here(tmp_path / "all", 40, 8, model="scripted:fail_on=prompt", max_error_rate=1.0).coordinator.counts().failed == 40


def test_a_fault_of_every_worker_reaches_the_user_by_name(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"worker .*:\d+: the scripted engine knows"):
        run_here(tmp_path, 4, 1, model="scripted:nonsense=1")
    assert list((tmp_path / "data").iterdir()) == []
    assert list(client.scan_iter("run:*")) == []


def test_a_spec_of_another_version_is_refused_by_name_and_told(run_here: Run, client: redis.Redis, tmp_path: Path) -> None:
    def age(progress: RunProgress) -> None:
        for key in client.scan_iter("run:*:spec"):
            spec = json.loads(client.get(key) or b"{}")
            client.set(key, json.dumps(spec | {"v": 99}), ex=60)

    with pytest.raises(DecodeError, match=r"worker .*RunSpec has version 99"):
        run_here(tmp_path, 400, 1, model="scripted:seconds=0.02", on_progress=age)


def test_a_result_that_is_not_the_shards_is_not_landed(
    run_here: Run, client: redis.Redis, tmp_path: Path, session: ModuleType, help_: SimpleNamespace
) -> None:
    run_here(tmp_path / "plain", 40, 2)
    spoiled = []

    def spoil(progress: RunProgress) -> None:
        for key in [] if spoiled else client.scan_iter("run:*:blob:*"):
            prefix, shard = key.decode().split(":blob:")
            if not client.exists(f"{prefix}:lease:{shard}"):
                client.hset(f"{prefix}:result:{shard}", mapping={"rows": b"nonsense", "report": b"{}"})
                client.rpush(f"{prefix}:ready", shard)
                for name in (f"result:{shard}", "ready"):
                    client.expire(f"{prefix}:{name}", 60)
                spoiled.append(shard)
                return

    run_here(tmp_path / "out", 40, 2, model="scripted", on_progress=spoil)
    assert spoiled
    assert help_.files_of(tmp_path / "out") == help_.files_of(tmp_path / "plain")


def test_a_message_that_got_lost_is_noticed(
    run_here: Run, client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: LocalWorkers
) -> None:
    lost: list[object] = []

    def lose(progress: RunProgress) -> None:
        if not lost:
            lost.extend(client.rpop(key) for key in client.scan_iter(f"{QUEUE}*") if client.type(key) == b"list")

    run = run_here(tmp_path, 24, 2, model="scripted:seconds=0.05", on_progress=lose)
    assert any(lost)
    assert run.manifest.status == "complete"
    assert "was lost with its worker or its message" in caplog.text


def test_a_broker_that_forgot_everything_is_told_again(run_here: Run, client: redis.Redis, tmp_path: Path, help_: SimpleNamespace) -> None:
    run_here(tmp_path / "plain", 24, 2, model="scripted:seconds=0.05")
    wiped: list[bytes] = []

    def wipe(progress: RunProgress) -> None:
        if not wiped and progress.shards_done >= 1:
            wiped.extend(client.scan_iter("*"))
            client.delete(*wiped)

    run = run_here(tmp_path / "out", 24, 2, model="scripted:seconds=0.05", on_progress=wipe)
    assert wiped
    assert run.manifest.status == "complete"
    assert help_.files_of(tmp_path / "out") == help_.files_of(tmp_path / "plain")


def test_a_run_without_records_is_complete_at_once(run_here: Run, tmp_path: Path) -> None:
    assert run_here(tmp_path, 0, 4).manifest.status == "complete"


def test_an_error_of_the_source_ends_the_session_and_leaves_no_key(
    run_here: Run, client: redis.Redis, tmp_path: Path, session: ModuleType
) -> None:
    class Broken:
        blob_schema = session.MadeUpShards(session.make_spec(4, 1)).blob_schema

        def blob(self, shard: int) -> bytes:
            raise DecodeError(f"shard {shard} of {uuid.uuid4()}")

    broken: Any = Broken()
    with pytest.raises(DecodeError):
        run_here(tmp_path, 4, 1, shards=broken)
    assert list(client.scan_iter("run:*")) == []
