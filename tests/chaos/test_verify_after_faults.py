"""A run under faults, cut up and fed in another way, is the dataset that `verify` and `diff` hold it to be: every row equal."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos_fleet import KINDS, MARK, poll, processes

from producer.dataset_diff import DatasetDiff
from producer.manifest_file import read_manifest
from producer.row_selection import RowSelection
from producer.verification import VerifyRequest, verify

Start = Callable[..., "subprocess.Popen[bytes]"]
RECORDS = {"scripted": 60, "real": 20}


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In the environment of every process of the test; at its end none is left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    monkeypatch.delenv("SPECMILL_BROKER", raising=False)
    yield value
    for pid in processes(value):
        os.kill(pid, signal.SIGKILL)
    poll(lambda: not processes(value), 20, "the end of every process")


@pytest.fixture
def start(tmp_path: Path, mark: str) -> Start:
    """`start("out", …)`: `specmill run` of the test's prompts; with `turned`, of the same in the opposite order."""

    def run(out: str, *words: object, turned: bool = False) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "producer.cli", "run", "turned.jsonl" if turned else "prompts.jsonl", "--out", out]
        return subprocess.Popen([*command, "--n", "2", "--seed", "3", "--quiet", *map(str, words)], cwd=tmp_path)

    return run


@pytest.fixture(params=["scripted", "real"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The options of a model; its prompts lie in the test's folder."""
    lines = [json.dumps({"id": f"r{i}", "prompt": f"{i} is a number, and the next one is"}) + "\n" for i in range(RECORDS[request.param])]
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    (tmp_path / "turned.jsonl").write_text("".join(reversed(lines)))
    if request.param == "scripted":
        return ["--model", "scripted:seconds=0.05", "--mtp", "scripted", "--max-tokens", "8"]
    trunk, head = request.getfixturevalue("agreeing_pair")
    return ["--model", str(trunk), "--mtp", str(head), "--max-tokens", "32", "--slots", "2", "--temperature", "0.9", "--top-p", "0.95"]


def kill_one(mark: str, kind: str) -> None:
    os.kill(poll(lambda: [pid for pid, command in processes(mark).items() if KINDS[kind] in command], what=f"a {kind}")[0], signal.SIGKILL)


def test_every_row_is_equal_after_deaths_and_in_another_cut_and_order(model: list[str], start: Start, mark: str, tmp_path: Path) -> None:
    assert start("peace", *model, "--shard-size", 7).wait(600) == 0

    session = start("war", *model, "--shard-size", 1, "--workers", 2, turned=True)
    data = tmp_path / "war" / "data"
    for parts, victim in ((1, "engine"), (3, "worker"), (5, "")):
        poll(lambda parts=parts: len(list(data.glob("part-*"))) >= parts, 300, f"{parts} parts")
        if victim:
            kill_one(mark, victim)
    session.kill()
    assert session.wait(20) == -signal.SIGKILL, "the run was over before its session was killed"
    assert start("war", *model, "--shard-size", 1, "--workers", 3, turned=True).wait(600) == 0

    manifest = read_manifest(tmp_path / "war")
    assert manifest is not None
    assert (manifest.status, sum(shard.failed for shard in manifest.shards)) == ("complete", 0)
    for out in ("peace", "war"):
        report = verify(tmp_path / out, VerifyRequest(RowSelection(every=True)))
        assert (report.exit_code, len(report.verdicts), report.bad) == (0, 2 * manifest.spec.records, []), report.text()
        assert {verdict.mode for verdict in report.verdicts} == {"regenerated"}
    diff = DatasetDiff.of(tmp_path / "peace", tmp_path / "war")
    assert (diff.exit_code, diff.equal, diff.different) == (0, 2 * manifest.spec.records, 0)
