"""`--backend`: whose workers may compute a run's shards. One machine plays several: the scripted engine says which chip it is on."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import redis
from click.testing import CliRunner

from producer.backend_rule import BackendRule
from producer.broker import EmbeddedBroker
from producer.cli import main
from producer.coordinator import Coordinator
from producer.fleet_status import FleetStatus
from producer.local_workers import LocalWorkers, WorkerSettings
from producer.manifest_file import read_manifest
from producer.run_progress import RunProgress
from schemas.errors import BackendError
from schemas.manifest import Manifest
from schemas.profile import Backend
from worker.engine.scripted import CHIP_VARIABLE
from worker.ledger import Ledger

ABACUS, LOOM = "cpu/abacus/no-mlx", "cpu/loom-2/no-mlx"
CHIPS = {ABACUS: "Abacus", LOOM: "Loom (2)"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of the test's own, so that it has no workers but the test's."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def workers_of(
    broker: EmbeddedBroker, tmp_path: Path, mark: str, session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], LocalWorkers]]:
    """`workers_of(class)`: one more worker, on a machine of that class."""
    started: list[LocalWorkers] = []

    def start(class_name: str) -> LocalWorkers:
        monkeypatch.setenv(CHIP_VARIABLE, CHIPS[class_name])
        settings = WorkerSettings(lease_seconds=session.LEASE_SECONDS)
        started.append(LocalWorkers(1, broker.url, tmp_path / f"group-{len(started)}", settings).__enter__())
        monkeypatch.delenv(CHIP_VARIABLE)
        return started[-1]

    yield start
    for workers in started:
        workers.__exit__()


@pytest.fixture
def run_to_the_end(broker: EmbeddedBroker, session: ModuleType, tmp_path: Path) -> Callable[..., Manifest]:
    """`run_to_the_end(backend, records, act)`: a run in `tmp_path / "out"` whose workers the test starts."""

    def run(backend: str, records: int = 24, act: Callable[[RunProgress], None] = lambda _: None) -> Manifest:
        spec = replace(session.make_spec(records, 2, model="scripted:seconds=0.02", run_id=uuid.uuid4().hex), backend=backend)
        deadline = time.monotonic() + 300  # of a machine that does much else
        shards = session.MadeUpShards(spec)
        coordinator = Coordinator(spec, tmp_path / "out", broker.url, shards, act, lease_seconds=session.LEASE_SECONDS)
        manifest = coordinator.run(lambda: time.monotonic() > deadline)
        assert manifest.status == "complete"
        return manifest

    return run


def classes(manifest: Manifest) -> set[str | None]:
    return {shard.backend.class_name for shard in manifest.shards}


def test_any_takes_both_and_records_which(workers_of: Callable[[str], LocalWorkers], run_to_the_end: Callable[..., Manifest]) -> None:
    first, second = workers_of(ABACUS), []

    def act(progress: RunProgress) -> None:
        if progress.shards_done and not second:
            first.__exit__()
            second.append(workers_of(LOOM))

    assert classes(run_to_the_end("any", 24, act)) == {ABACUS, LOOM}


def test_same_is_what_the_first_worker_is_and_others_leave_the_run_alone(
    workers_of: Callable[[str], LocalWorkers], run_to_the_end: Callable[..., Manifest], client: redis.Redis
) -> None:
    first, later, seen = workers_of(ABACUS), [], []

    def act(progress: RunProgress) -> None:
        if progress.shards_done and not later:
            first.__exit__()
            later.append(workers_of(LOOM))
        text = FleetStatus.look(client).text()
        if not seen and f"({LOOM}): another class, takes no shard" in text and f"left shards of {ABACUS} to others" in text:
            seen.append(text)
            workers_of(ABACUS)

    assert classes(run_to_the_end("same", 24, act)) == {ABACUS}
    assert f"on the backend class {ABACUS}" in seen[0]
    assert list(client.scan_iter("run:*")) == []


def test_shards_wait_visibly_for_a_worker_of_the_class_and_are_none_the_worse(
    workers_of: Callable[[str], LocalWorkers],
    run_to_the_end: Callable[..., Manifest],
    broker: EmbeddedBroker,
    client: redis.Redis,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers_of(ABACUS)
    seen: list[str] = []

    def act(_: RunProgress) -> None:
        (run,) = FleetStatus.look(client).runs
        waits = f"no worker may take scripted:seconds=0.02 on the backend class {LOOM}"
        if not seen and run.state == "waiting" and waits in run.why and f"{ABACUS}) is of another class" in caplog.text:
            seen.extend(run.refusing)
            watched = CliRunner().invoke(main, ["watch", run.run_id[:6], "--broker", broker.url, "--once"]).output
            assert f"waiting: 0/24 rows (0%), {waits}, 1 worker of another backend class takes no shard" in watched
            workers_of(LOOM)

    with caplog.at_level(logging.WARNING):
        manifest = run_to_the_end(LOOM, 24, act)
    assert classes(manifest) == {LOOM}
    assert [name.endswith(f"({ABACUS})") for name in seen] == [True]
    assert "came back unusable" not in caplog.text
    assert "lost with its worker" not in caplog.text


def test_a_resumed_run_stays_with_its_class_and_other_demands_are_refused(
    specmill_here: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.txt").write_text("".join(f"prompt {index}.\n" for index in range(12)))
    words = ("run", "p.txt", "--out", "out", "--model", "scripted", "--shard-size", 3, "--max-tokens", 8, "--quiet")
    monkeypatch.setenv(CHIP_VARIABLE, CHIPS[ABACUS])
    assert "backend must be any, same, or a class as `specmill doctor` names it (gpu/CHIP/mlx-VERSION); received 'M3'" in specmill_here(
        *words, "--backend", "M3"
    )
    assert f"this machine is {ABACUS}" in specmill_here(*words, "--backend", LOOM)
    assert "12 rows ok" in specmill_here(*words, "--backend", "same")
    parts = sorted((tmp_path / "out" / "data").iterdir())
    whole = [part.read_bytes() for part in parts]
    parts[-1].unlink()
    monkeypatch.setenv(CHIP_VARIABLE, CHIPS[LOOM])
    assert f"the run wants workers of the backend class {ABACUS} (--backend same); this machine is {LOOM}" in specmill_here(*words)
    assert "12 rows ok" in specmill_here(*words, "--backend", "any")
    assert [part.read_bytes() for part in parts] == whole, "the demand is no part of the contract"
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert (manifest.spec.backend, classes(manifest)) == ("any", {ABACUS, LOOM})
    parts[0].unlink()
    assert f"part-00003.parquet was computed on {LOOM}; --backend same wants {ABACUS}" in specmill_here(*words, "--backend", "same")


@pytest.fixture
def specmill_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> Callable[..., str]:
    """`specmill_here("run", …)`: a command in the test's folder; everything that it printed."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words]).output


def test_a_result_of_another_class_is_refused_and_the_first_one_decides(client: redis.Redis, session: ModuleType) -> None:
    spec = replace(session.make_spec(4, 2, run_id=uuid.uuid4().hex), backend="same")
    ledger = Ledger(client, spec.run_id)
    ledger.open(spec, [])
    abacus, loom = (Backend(device="cpu", chip=chip, mlx="-", blas="", row_invariant=True) for chip in CHIPS.values())
    assert ledger.join_class(spec, LOOM) == LOOM
    rule = BackendRule.of(spec)
    rule.check_result("w", replace(loom, device="none", chip="-"), ledger)  # error rows that no engine made
    assert rule.wanted is None
    rule.check_result("w", abacus, ledger)
    assert (ledger.wanted_class(spec), ledger.join_class(spec, LOOM)) == (ABACUS, ABACUS), "what has landed overrules who has begun"
    with pytest.raises(BackendError, match=f"worker w is of the backend class {LOOM}; the run wants {ABACUS}"):
        rule.check_result("w", loom, ledger)
    ledger.close()
    assert ledger.join_class(spec, LOOM) == LOOM
    assert list(client.scan_iter("run:*")) == [], "a worker that comes too late leaves nothing behind"
