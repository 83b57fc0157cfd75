"""A dataset made again from its own folder, and one that was stopped and resumed, are the same rows."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0


def part_files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "data").iterdir()}


def test_a_rerun_needs_no_prompts_file_and_gives_the_same_bytes(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    with prompts.open("a") as file:
        file.write("not json\n" + json.dumps({"id": "chat", "messages": [{"role": "user", "content": "Hi."}], "topic": "t"}) + "\n")
    words = ("--model", "scripted", "--mtp", "scripted", "--n", 2, "--shard-size", 5, "--on-bad-input", "error-row", "--quiet")
    assert specmill("run", "prompts.jsonl", "--out", "a", *words).returncode == 0
    prompts.unlink()
    done = specmill("rerun", "a", "--out", "b", "--quiet")
    assert (done.returncode, "a / b: the same rows" in done.stdout) == (0, True), done.stdout + done.stderr
    assert part_files(tmp_path / "a") == part_files(tmp_path / "b")
    assert specmill("verify", "b", "--all", "--quiet").returncode == 0
    again = specmill("rerun", "a", "--out", "b", "--quiet")
    assert (again.returncode != 0, "b is complete already" in again.stderr) == (True, True), again.stdout + again.stderr


def test_a_stopped_and_resumed_dataset_verifies(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    words = ("run", "prompts.jsonl", "--out", "out", "--model", "scripted:seconds=0.1", "--mtp", "scripted", "--shard-size", "2", "--quiet")
    command = [sys.executable, "-P", "-m", "producer.cli", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list((tmp_path / "out" / "data").glob("part-*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert specmill("verify", "out", "--quiet").returncode == 2  # not complete yet
    assert specmill(*words).returncode == 0
    assert specmill("verify", "out", "--all", "--quiet").returncode == 0
