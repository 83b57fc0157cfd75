"""status, pause, resume and cancel on a session with a broker of its own: the folder is all that one needs to name."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from producer.cli import main

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, mark: str) -> Iterator[Start]:
    """`start(out, seconds)`: `specmill run` of twelve prompts in four shards."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"prompt {index}.\n" for index in range(12)))
    started: list[subprocess.Popen[bytes]] = []

    def run(out: Path, seconds: float) -> "subprocess.Popen[bytes]":
        words = ["run", prompts, "--out", out, "--model", f"scripted:seconds={seconds}", "--depth", 0, "--shard-size", 3, "--quiet"]
        environment = {name: value for name, value in os.environ.items() if name != "SPECMILL_BROKER"}
        started.append(subprocess.Popen([sys.executable, "-m", "producer.cli", *map(str, words)], env=environment))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(20)


def specmill(*words: object) -> tuple[int, str]:
    result = CliRunner(env={"SPECMILL_BROKER": None}).invoke(main, [str(word) for word in words])
    return result.exit_code, result.output


def test_a_session_is_watched_held_and_let_go_by_its_folder(start: Start, tmp_path: Path, help_: SimpleNamespace) -> None:
    out = tmp_path / "out"
    session = start(out, 0.3)
    help_.poll(lambda: "in work" in specmill("status", out)[1] and list((out / "data").glob("part-*")), what="a part")
    code, text = specmill("cancel", out, "--forget")
    assert code == 1
    assert "would begin it again" in text
    assert specmill("pause", out)[0] == 0
    help_.poll(lambda: "paused" in (text := specmill("status", out)[1]) and " 0 finished, 0 in work" in text, seconds=30, what="the pause")
    landed = len(list((out / "data").glob("part-*")))
    quiet = time.monotonic()
    help_.poll(lambda: time.monotonic() - quiet > 1.5)
    assert len(list((out / "data").glob("part-*"))) == landed
    assert specmill("resume", out)[0] == 0
    assert session.wait(90) == 0
    assert len(list((out / "data").glob("part-*"))) == 4
    code, text = specmill("pause", out)
    assert code == 1
    assert "nothing runs in" in text


def test_a_cancelled_session_ends_as_if_it_had_been_interrupted(start: Start, tmp_path: Path, help_: SimpleNamespace) -> None:
    out = tmp_path / "out"
    session = start(out, 30)
    help_.poll(lambda: " 1 in work" in specmill("status", out)[1], what="a shard in work")
    assert specmill("cancel", out)[0] == 0
    began = time.monotonic()
    assert session.wait(20) == 130
    assert time.monotonic() - began < 8
    assert not (out / ".specmill").exists()
    assert list((out / "data").iterdir()) == []
