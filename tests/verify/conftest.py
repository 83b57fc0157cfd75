"""The command in a process of its own, and small datasets that it makes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Specmill = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def specmill(tmp_path: Path) -> Specmill:
    """`specmill("run", …)` → the finished process, in the test's own folder."""

    def call(*words: object, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "producer.cli", *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
        )

    return call


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Ten prompts with a column of the user's own."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"r{i}", "prompt": f"Write line number {i}.", "topic": f"t{i}"}) + "\n" for i in range(10)))
    return file
