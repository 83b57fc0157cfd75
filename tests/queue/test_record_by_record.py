"""A shard that kills, record by record: who is blamed, and what a dead worker's successor knows."""

import uuid
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import redis

from schemas.errors import EngineCrashedError, RunCancelledError
from schemas.profile import Backend
from schemas.progress import Tally
from schemas.tables import table_from_bytes, table_to_bytes
from worker.engine.client import ShardOutcome
from worker.engine.completion import completions_to_table, requests_from_blob
from worker.engine.engine import Timings
from worker.engine.scripted import ScriptedEngine
from worker.ledger import Ledger
from worker.record_by_record import CHANCES, RecordByRecord

BACKEND = Backend(device="cpu", chip="c", mlx="-", blas="", row_invariant=True)


@pytest.fixture
def scene(client: redis.Redis, session: ModuleType) -> Iterator[SimpleNamespace]:
    """A run of one shard of five records, and an engine whose deaths are scripted by record."""
    run_id = uuid.uuid4().hex
    spec = session.make_spec(5, 5, 2, run_id=run_id)
    ledger = Ledger(client, run_id)
    ledger.open(spec, [])
    blob = session.MadeUpShards(spec).blob(0)
    ledger.issue(0, blob)
    made = SimpleNamespace(ledger=ledger, spec=spec, blob=blob, deadly=lambda row: False, begun=[])

    def run(one: bytes, _: Tally) -> ShardOutcome:
        table = table_from_bytes(one)
        (row,) = table["row"].to_pylist()
        made.begun.append(row)
        if made.deadly(row):
            raise EngineCrashedError(f"record {row}")
        completions = ScriptedEngine("scripted").complete(spec, requests_from_blob(table, spec), Timings(), lambda _: None)
        rows = table_to_bytes(completions_to_table(table, completions, logprobs=False))
        return ShardOutcome(rows, BACKEND, Tally(rows=2), 0.0, 1.0, 1.0, 1.0, 1.0, 7)

    made.attempt = lambda proven=False: RecordByRecord(ledger, 0, spec, run, BACKEND, proven=proven).outcome(blob)
    yield made
    ledger.close()


def errors(outcome: ShardOutcome) -> list[int]:
    return [row["row"] for row in table_from_bytes(outcome.rows).to_pylist() if row["error"] is not None]


def deaths(scene: SimpleNamespace, record: int) -> int:
    count: int = scene.ledger.begin_record(0, record) - 1
    scene.ledger.end_record(0, record)
    return count


def test_only_the_deadly_record_is_lost_and_the_sums_are_those_of_the_rest(scene: SimpleNamespace) -> None:
    scene.deadly = lambda row: row == 3
    outcome = scene.attempt()
    assert errors(outcome) == [3, 3]
    assert scene.begun == [0, 1, 2, *[3] * CHANCES, 4]
    assert (outcome.tally.rows, outcome.tally.failed, outcome.prefill_seconds, outcome.peak_bytes) == (10, 2, 4.0, 7)
    assert table_from_bytes(outcome.rows)["row"].to_pylist() == [row for row in range(5) for _ in range(2)]


def test_an_engine_that_has_completed_nothing_blames_no_record(scene: SimpleNamespace) -> None:
    scene.deadly = lambda row: True
    with pytest.raises(EngineCrashedError, match="has not completed a single row"):
        scene.attempt()
    assert [deaths(scene, record) for record in range(5)] == [0] * 5
    scene.deadly = lambda row: False
    assert errors(scene.attempt()) == []
    scene.deadly = lambda row: True
    assert len(errors(scene.attempt(proven=True))) == 10


def test_a_record_that_takes_the_whole_worker_with_it_is_known_to_the_next_one(scene: SimpleNamespace) -> None:
    class PowerCutError(BaseException):
        pass

    def cut(row: int) -> bool:
        if row == 2:
            raise PowerCutError
        return False

    scene.deadly = cut
    for _ in range(CHANCES):
        with pytest.raises(PowerCutError):
            scene.attempt()
    scene.begun.clear()
    assert errors(scene.attempt()) == [2, 2]
    assert scene.begun == [0, 1, 3, 4]


def test_a_shard_that_is_given_up_blames_nobody(scene: SimpleNamespace) -> None:
    def stop(row: int) -> bool:
        raise RunCancelledError("enough")

    scene.deadly = stop
    for _ in range(CHANCES + 1):
        with pytest.raises(RunCancelledError):
            scene.attempt()
    assert deaths(scene, 0) == 0
