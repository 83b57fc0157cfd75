"""The real engine, on a tiny model of random weights: its worker dies in the middle of a run, and the rows are the same.

`SPECMILL_CHAOS_MODEL=smollm2-135m` does it with the small real model; that takes minutes where the BLAS is slow.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from chaos_fleet import KINDS, MARK, files_of, poll, processes


def start(folder: Path, name: str, model: str, mark: str) -> "subprocess.Popen[bytes]":
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"{index} is a number, and the next one is\n" for index in range(8)))
    words = [
        "run",
        prompts,
        "--out",
        folder / name,
        "--model",
        model,
        "--raw",
        "--shard-size",
        1,
        "--max-tokens",
        12,
        "--slots",
        2,
        "--quiet",
    ]
    environment = {**os.environ, MARK: mark}
    environment.pop("SPECMILL_BROKER", None)
    return subprocess.Popen([sys.executable, "-m", "producer.cli", *map(str, words)], env=environment)


def test_the_rows_of_the_real_engine_survive_the_death_of_their_worker(tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    model = os.environ.get("SPECMILL_CHAOS_MODEL") or str(tiny_llama(vocab_size=300, hidden=32, layers=1, heads=4, kv_heads=2, seed=8))
    assert start(tmp_path, "peace", model, mark).wait(240) == 0
    session = start(tmp_path, "out", model, mark)
    data = tmp_path / "out" / "data"
    poll(lambda: list(data.glob("part-*")), 120, "a part")
    for pid in [pid for pid, command in processes(mark).items() if KINDS["worker"] in command]:
        os.kill(pid, signal.SIGKILL)
    assert session.wait(240) == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "peace")
    poll(lambda: not processes(mark), 20, "the end of every process")
