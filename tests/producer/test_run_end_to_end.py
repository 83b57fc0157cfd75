"""`specmill run` as people run it: a real Valkey, real workers, the scripted engine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

from producer.manifest_file import read_manifest

PATIENCE_SECONDS = 60.0


class Specmill:
    """The command in a process of its own, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", "producer.cli", *map(str, words)]
        process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.started.append(process)
        return process

    def __call__(self, *words: object) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def specmill(tmp_path):
    command = Specmill(tmp_path)
    yield command
    command.close()


def write_prompts(folder, count, **columns):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"r{i}", "prompt": f"prompt {i}", **columns, "n": i}) + "\n" for i in range(count)))
    return path


def dataset(out):
    return ds.dataset(out / "data").to_table().to_pylist()


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def landed(out):
    return len(list((out / "data").glob("part-*.parquet")))


def test_a_prompts_file_becomes_a_dataset_that_every_reader_takes(specmill, tmp_path):
    lines = [
        {"id": "a", "prompt": "one", "tags": ["x", "y"], "meta": {"k": 1, "s": "t"}, "score": 1, "odd": 1},
        {"id": "b", "messages": [{"role": "user", "content": "two"}], "score": 0.5, "odd": "text"},
        {"id": "c", "prompt": "fail here", "score": None, "flag": True},
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = specmill(
        "run", "prompts.jsonl", "--out", "out", "--model", "scripted:fail_on=fail", "--mtp", "scripted", "--n", 2, "--max-tokens", 8
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    out = tmp_path / "out"
    rows = dataset(out)
    assert [(row["record_id"], row["row"], row["sample"]) for row in rows] == [(i, r, s) for r, i in enumerate("abc") for s in (0, 1)]
    assert [row["error"] and row["error"]["type"] for row in rows] == [None] * 4 + ["NonFiniteLogitsError"] * 2
    assert (rows[0]["prompt"], rows[0]["messages"], rows[0]["tags"], rows[0]["meta"]) == ("one", None, ["x", "y"], {"k": 1, "s": "t"})
    assert (rows[2]["prompt"], rows[2]["messages"]) == (None, [{"role": "user", "content": "two"}])
    assert [row["odd"] for row in rows[::2]] == ["1", '"text"', None]
    assert [row["score"] for row in rows[::2]] == [1.0, 0.5, None]
    assert "4 rows ok, 2 failed" in done.stdout
    assert "NonFiniteLogitsError 2" in done.stdout
    assert "c, sample 1: NonFiniteLogitsError" in done.stdout
    assert "column 'odd' holds values without a common type" in done.stdout
    assert "acceptance  by depth 1: " in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "data", "log", "manifest.json"]

    tokens = [row["token_ids"] for row in rows]
    assert [list(ids) for ids in pd.read_parquet(out / "data")["token_ids"]] == tokens
    assert pl.read_parquet(out / "data" / "*.parquet")["token_ids"].to_list() == tokens
    query = f"select token_ids, error.type, acceptance.cycles from '{out}/data/*.parquet' order by row, sample"
    assert [row[0] for row in duckdb.sql(query).fetchall()] == tokens


def test_the_same_command_again_changes_nothing_and_says_so(specmill, tmp_path):
    write_prompts(tmp_path, 5)
    words = ("run", "prompts.jsonl", "--out", "out", "--model", "scripted", "--shard-size", 2)
    assert specmill(*words).returncode == 0
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    again = specmill(*words)
    assert (again.returncode, "is complete: nothing to do" in again.stderr, "5 rows ok" in again.stdout) == (0, True, True)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    other = specmill(*words, "--seed", 1)
    assert (other.returncode, "seed: 0 / 1" in other.stderr, "Traceback" in other.stderr) == (1, True, False)


def test_ctrl_c_stops_and_the_same_command_goes_on(specmill, tmp_path):
    write_prompts(tmp_path, 40)
    words = ("run", "prompts.jsonl", "--model", "scripted:seconds=0.1", "--shard-size", 4, "--mtp", "scripted", "--max-tokens", 8)
    process = specmill.start(*words, "--out", "out")
    wait_for(lambda: landed(tmp_path / "out") >= 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (130, ""), err
    assert "stopping; what has landed is kept" in err
    assert "the same command goes on" in err
    assert read_manifest(tmp_path / "out").status == "cancelled"
    resumed = specmill(*words, "--out", "out")
    assert (resumed.returncode, "shards already there" in resumed.stderr) == (0, True)
    straight = specmill(*words, "--out", "straight", "--workers", 2)
    assert straight.returncode == 0
    names = sorted(path.name for path in (tmp_path / "straight" / "data").iterdir())
    assert [(tmp_path / "out" / "data" / name).read_bytes() for name in names] == [
        (tmp_path / "straight" / "data" / name).read_bytes() for name in names
    ]


def test_ctrl_c_before_anything_has_landed_says_so_and_the_same_command_begins_again(specmill, tmp_path):
    write_prompts(tmp_path, 4)
    words = ("run", "prompts.jsonl", "--out", "out", "--model", "scripted:seconds=0.2", "--shard-size", 4, "--max-tokens", 8, "--quiet")
    process = specmill.start(*words)
    wait_for(lambda: (tmp_path / "out" / "manifest.json").exists())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, "nothing of 4 rows has landed yet" in err) == (130, True), err
    assert specmill(*words).returncode == 0


def test_ctrl_c_while_prompts_are_read_is_one_message(tmp_path):
    command = [sys.executable, "-P", "-m", "producer.cli", "run", "-", "--out", "out", "--model", "scripted"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"\n" * 300_000)  # more than a pipe holds: once this returns, they are being read
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(BrokenPipeError):  # it has obeyed already; else a read that began just then comes back with this
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert process.wait(PATIENCE_SECONDS) == 130
        said = process.stderr.read().decode()
    assert said == "stopped; nothing is half written, and the same command starts again from what is there\n"
    assert not (tmp_path / "out").exists()


def test_a_second_ctrl_c_leaves_at_once_and_leaves_nothing_running(specmill, tmp_path):
    write_prompts(tmp_path, 40)
    process = specmill.start("run", "prompts.jsonl", "--out", "out", "--model", "scripted:seconds=0.2", "--shard-size", 4)
    wait_for(lambda: landed(tmp_path / "out") >= 1)
    os.kill(process.pid, signal.SIGSTOP)  # both signals must find it before it has obeyed the first one
    process.send_signal(signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: process.poll() is not None or process.send_signal(signal.SIGINT) is not None)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, "stopped:" in err) == (130, False)
    wait_for(lambda: not processes_of(tmp_path))
    assert specmill("run", "prompts.jsonl", "--out", "out", "--model", "scripted:seconds=0.2", "--shard-size", 4).returncode == 0
    assert len(dataset(tmp_path / "out")) == 40


def test_bad_lines_become_error_rows_when_asked(specmill, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "good"}\nnot json\n{"prompt": 5, "x": 1}\n')
    refused = specmill("run", "p.jsonl", "--out", "out", "--model", "scripted")
    assert (refused.returncode, "line 2: not JSON" in refused.stderr, (tmp_path / "out").exists()) == (1, True, False)
    kept = specmill("run", "p.jsonl", "--out", "out", "--model", "scripted", "--on-bad-input", "error-row", "--quiet")
    assert (kept.returncode, kept.stderr) == (0, "")
    rows = dataset(tmp_path / "out")
    assert [row["record_id"] for row in rows] == ["0", "line-2", "line-3"]
    assert [row["error"] and row["error"]["type"] for row in rows] == [None, "BadInputError", "BadInputError"]
    assert rows[2]["error"]["message"] == "line 3: prompt must be text; received a number"
    assert "--on-bad-input error-row" in (tmp_path / "out" / "README.md").read_text()


def test_a_broker_that_is_not_there_is_one_message(specmill, tmp_path):
    write_prompts(tmp_path, 1)
    for url, says in {"redis://:secret@127.0.0.1:1/0": "cannot be used", "smtp://:secret@x": "is no broker address"}.items():
        done = specmill("run", "prompts.jsonl", "--out", "out", "--model", "scripted", "--broker", url)
        assert (done.returncode, "Traceback" in done.stderr, "secret" in done.stderr) == (1, False, False), done.stderr
        assert says in done.stderr
        assert {"cannot be used": "Check that it runs", "is no broker address": "give redis://"}[says] in done.stderr


def test_a_folder_that_cannot_be_written_is_one_message(specmill, tmp_path):
    write_prompts(tmp_path, 1)
    done = specmill("run", "prompts.jsonl", "--out", "prompts.jsonl/out", "--model", "scripted")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr


def processes_of(folder):
    """Processes that still work for a run in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink().is_relative_to(folder):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
