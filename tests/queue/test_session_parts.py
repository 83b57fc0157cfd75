"""The small parts of a session: attempts log, progress, lock, local workers, addresses."""

import contextlib
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow.parquet as pq
import pytest
import redis

from producer import local_workers
from producer.attempts_log import AttemptsLog
from producer.broker import EmbeddedBroker
from producer.coordinator import Coordinator
from producer.local_workers import LocalWorkers
from producer.progress_display import plain_line
from producer.progress_tracker import SILENT_SECONDS, ProgressTracker
from producer.run_lock import RunLock
from producer.run_progress import Counts, RunProgress
from schemas.errors import EngineError, LandingError, ModelError, SpecmillError
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from schemas.tables import ATTEMPTS
from worker import reconciler
from worker.redis_client import make_client, masked, password_of
from worker.reports import Fault, LiveReport

BACKEND = Backend(device="cpu", chip="c", mlx="-", blas="", row_invariant=True)
LONG_SECONDS = 60.0  # what the reconciler would wait where a test shows that nobody waits for it


def report(shard: int, rows: int = 2, seconds: float = 4.0) -> AttemptReport:
    tally = Tally(rows=rows, completion_tokens=10 * rows)
    return AttemptReport("r", shard, 1, "w", BACKEND, 1e9, seconds, 2.0, 0.0, 0.0, 0.0, 0.0, 7, tally)


def shards_in(folder: Path) -> list[int]:
    return [shard for path in sorted(folder.glob("*.parquet")) for shard in pq.read_table(path)["shard"].to_pylist()]


def test_reports_become_parquet_at_the_end_of_a_session(tmp_path: Path) -> None:
    for shard in (0, 1):
        log = AttemptsLog(tmp_path, tmp_path)
        assert log.open() == []
        log.append(report(shard))
        log.close()
        log.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["attempts-0000.parquet", "attempts-0001.parquet"]
    table = pq.read_table(tmp_path / "attempts-0000.parquet")
    assert table.schema.equals(ATTEMPTS)
    assert table["tokens_per_second"].to_pylist() == [10.0]


def test_a_killed_sessions_journal_is_recovered_once(tmp_path: Path) -> None:
    killed = AttemptsLog(tmp_path, tmp_path)
    killed.open()
    killed.append(report(0))
    killed.append(report(1))
    journal = tmp_path / "attempts-0000.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"cut')
    assert AttemptsLog(tmp_path, tmp_path).open() == [report(0), report(1)]
    assert shards_in(tmp_path) == [0, 1]

    journal.write_bytes(report(0).to_json().encode() + b"\n")  # killed between the Parquet file and the journal's removal
    assert AttemptsLog(tmp_path, tmp_path).open() == [report(0)]
    assert shards_in(tmp_path) == [0, 1]
    assert not journal.exists()


def test_reports_that_the_disk_takes_in_pieces_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    log = AttemptsLog(tmp_path, tmp_path)
    log.open()
    with monkeypatch.context() as patched:
        patched.setattr("os.write", lambda file, data: write(file, data[:100]))
        log.append(report(0), report(1))
    assert AttemptsLog(tmp_path, tmp_path).open() == [report(0), report(1)]


def test_a_full_journal_begins_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producer.attempts_log.JOURNAL_LINES", 3)
    log = AttemptsLog(tmp_path, tmp_path)
    log.open()
    for shard in range(7):
        log.append(report(shard))
    log.close()
    assert shards_in(tmp_path) == list(range(7))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "attempts-0000.jsonl").write_text("nonsense\n")
    with pytest.raises(LandingError, match=r"attempts-0000\.jsonl"):
        AttemptsLog(tmp_path, tmp_path).open()


def test_progress_adds_landed_and_live_rows_and_never_a_shard_twice() -> None:
    now = 0.0
    tracker = ProgressTracker(Tally(rows=5, failed=1), clock=lambda: now)

    def snapshot(issued: set[int], landed: int) -> RunProgress:
        counts = Counts(total=20, ok=landed, failed=0, cancelled=0, pending=20 - landed)
        return tracker.snapshot(counts, shards_total=10, shards_done=0, issued=issued, ending=None)

    first = snapshot(set(), 5)
    assert (first.phase, first.eta_seconds, first.tokens_per_second) == ("loading model", None, 0.0)
    now = 10.0
    tracker.heard({"w": LiveReport(1, 3, Tally(rows=1, completion_tokens=10), None)})
    live = snapshot({3}, 5)
    assert (live.phase, live.tally.rows) == ("generating", 6)
    assert (live.tokens_per_second, live.eta_seconds) == (0.0, None)  # no rate over an instant
    now = 12.0
    tracker.landed(report(3))
    landed = snapshot(set(), 7)
    assert landed.tally.rows == 7
    assert landed.tokens_per_second == pytest.approx(10.0)
    assert landed.eta_seconds == pytest.approx(13.0)
    assert tracker.workers_heard(set()) == 1
    now = 10.0 + SILENT_SECONDS
    assert tracker.workers_heard(set()) == 0
    assert tracker.workers_heard({3}) == 1


def test_what_a_session_only_collects_is_counted_without_a_speed() -> None:
    now = 0.0
    tracker = ProgressTracker(Tally(), clock=lambda: now)

    def snapshot() -> RunProgress:
        return tracker.snapshot(Counts(4, 2, 0, 0, 2), shards_total=2, shards_done=1, issued={1}, ending=None)

    now = 3.0
    tracker.landed(report(0), ours=False)
    collected = snapshot()
    assert (collected.phase, collected.tally.rows, collected.tally.completion_tokens) == ("generating", 2, 20)
    assert (collected.tokens_per_second, collected.eta_seconds) == (0.0, None)
    now = 9.0
    tracker.landed(report(1, rows=3))
    assert snapshot().tokens_per_second == pytest.approx(15.0), "30 tokens of this session in the 2 s after loading"


def test_huge_prompts_are_seen_to_be_read_before_the_first_token() -> None:
    now = 0.0
    tracker = ProgressTracker(Tally(), clock=lambda: now)

    def look(read: int, left: int, tokens: int = 0) -> RunProgress:
        tally = Tally(prompt_tokens=read, prompt_tokens_left=left, completion_tokens=tokens)
        tracker.heard({"w": LiveReport(int(now), 3, tally, None)})
        return tracker.snapshot(Counts(20, 0, 0, 0, 20), shards_total=10, shards_done=0, issued={3}, ending=None)

    assert look(0, 0).phase == "loading model"
    assert (look(1000, 9000).phase, look(1000, 9000).eta_seconds) == ("reading prompts", None)
    now = 10.0
    reading = look(3000, 7000)
    assert (reading.phase, reading.eta_seconds) == ("reading prompts", 35.0)
    assert plain_line(reading).endswith("3,000 of 10,000 prompt tokens in work, first answers in 0:35")
    now = 50.0
    assert look(10_000, 0, tokens=1).phase == "generating"


def test_the_lock_is_for_one_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with RunLock(out) as lock:
        assert lock.folder == out / ".specmill"
        with pytest.raises(SpecmillError, match="another specmill run"), RunLock(out):
            pass
        assert lock.folder.exists()
    assert not lock.folder.exists()
    with RunLock(out):
        pass


def test_workers_that_cannot_live_are_given_up_with_their_last_lines(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, help_: SimpleNamespace
) -> None:
    monkeypatch.setattr(local_workers, "MAX_BARREN_LIVES", 2)
    with LocalWorkers(1, "nonsense://somewhere", tmp_path) as workers, pytest.raises(EngineError, match=r"(?s)2 times.*no broker address"):
        help_.poll(lambda: workers.tend() and False)


def test_a_dead_worker_is_named_and_replaced(mark: str, broker: EmbeddedBroker, tmp_path: Path, help_: SimpleNamespace) -> None:
    with LocalWorkers(1, broker.url, tmp_path) as workers:
        (first,) = workers.pids
        os.kill(first, signal.SIGKILL)
        (name,) = help_.poll(workers.tend)
        assert name.endswith(f":{first}")
        (second,) = workers.pids
        assert second != first
        assert workers.tend() == []


def test_a_worker_waits_for_a_broker_that_is_away(mark: str, tmp_path: Path, help_: SimpleNamespace, session: ModuleType) -> None:
    def pid_of(word: str) -> int:
        return next((pid for pid, command in help_.marked_processes(mark).items() if command.split(" ")[0].endswith(word)), 0)

    with EmbeddedBroker(tmp_path / "b") as broker:
        guard = next(pid for pid, command in help_.marked_processes(mark).items() if "broker_guard" in command)
        os.kill(guard, signal.SIGSTOP)
        os.kill(pid_of("valkey-server"), signal.SIGKILL)
        with LocalWorkers(1, broker.url, tmp_path / "w") as workers:
            help_.poll(lambda: "takes shards from" in (tmp_path / "w" / "worker-0.log").read_text(), what="the worker's start")
            os.kill(guard, signal.SIGCONT)
            help_.poll(lambda: _answers(broker.url), what="the server's return")
            spec = session.make_spec(4, 2, run_id=uuid.uuid4().hex)
            first = workers.pids
            manifest = Coordinator(spec, tmp_path / "out", broker.url, session.MadeUpShards(spec), workers=workers).run()
            assert manifest.status == "complete"
            assert workers.pids == first
            assert password_of(broker.url) not in (tmp_path / "w" / "worker-0.log").read_text()


def _answers(url: str) -> bool:
    with make_client(url, patient=False) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("redis://:se%40cret@host:1/0", "redis://:***@host:1/0", "se%40cret"),
        ("rediss://me:secret@host/0?ssl_cert_reqs=required", "rediss://me:***@host/0?ssl_cert_reqs=required", "secret"),
        ("redis://host:1/0", "redis://host:1/0", None),
        ("redis+socket:///tmp/x.sock", "redis+socket:///tmp/x.sock", None),
    ],
)
def test_addresses_are_shown_without_their_password(url: str, shown: str, password: str | None) -> None:
    assert masked(url) == shown
    assert password_of(url) == password


@pytest.mark.parametrize(("kind", "error"), [("ModelError", ModelError), ("Unheard", EngineError), ("NonFiniteLogitsError", EngineError)])
def test_a_fault_becomes_the_error_that_it_names(kind: str, error: Callable[..., Exception]) -> None:
    raised = Fault("host:1", 3, kind, "why").as_error()
    assert type(raised) is error
    assert "host:1" in str(raised)
    assert "why" in str(raised)


def test_a_message_in_a_dying_workers_hands_is_not_waited_for(
    mark: str, broker: EmbeddedBroker, tmp_path: Path, session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PATIENCE_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(reconciler, "UNACKED_SECONDS", 2 * LONG_SECONDS)

    def run(name: str, on_progress: Callable[[RunProgress], None]) -> RunProgress:
        seen: list[RunProgress] = []
        spec = session.make_spec(4, 2, run_id=uuid.uuid4().hex)

        def watch(progress: RunProgress) -> None:
            seen.append(progress)
            on_progress(progress)

        Coordinator(spec, tmp_path / name, broker.url, session.MadeUpShards(spec), watch, workers=workers).run()
        return seen[-1]

    with LocalWorkers(1, broker.url, tmp_path / "w") as workers:
        run("warm", lambda _: None)
        (stopped,) = workers.pids
        os.kill(stopped, signal.SIGSTOP)  # the broker hands it the next message all the same

        def kill(progress: RunProgress) -> None:
            if progress.in_flight and progress.elapsed > 0.2:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGKILL)

        done = run("out", kill)
    assert done.rows_ok == 4
    assert done.elapsed < LONG_SECONDS
