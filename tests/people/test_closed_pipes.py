"""Output that nobody reads: a command that prints ends like other Unix tools, and one that works goes on."""

import json
import os
import signal
import subprocess
import sys

import pyarrow.dataset as ds
import pytest
from scripted_dataset import make_dataset

COMMAND = [sys.executable, "-P", "-m", "producer.cli"]


@pytest.fixture
def closed():
    """The writing end of a pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("closed"), [{"prompt": f"p{i}"} for i in range(20)])


PRINTING = {
    "export": ("--to", "jsonl"),
    "report": ("--no-html",),
    "show": (),
    "watch": (),
    "manifest": (),
    "verify": ("--rows", "2", "--quiet", "--regenerate"),
}


@pytest.mark.parametrize("name", PRINTING)
def test_a_command_that_prints_ends_silently_by_sigpipe(out, closed, name):
    done = subprocess.run([*COMMAND, name, str(out), *PRINTING[name]], stdout=closed, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("--version",)])
def test_help_ends_so_too(closed, words):
    done = subprocess.run([*COMMAND, *words], stdout=closed, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_a_reader_that_leaves_in_the_middle_costs_nothing(out):
    script = f'set -o pipefail; {" ".join(COMMAND)} export {out} --to jsonl 2>&1 | (read line; echo "$line")'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (json.loads(done.stdout)["record_id"], done.stderr) == ("0", "")


def test_a_run_goes_on_and_ends_with_its_dataset(tmp_path, closed):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(12)))
    words = ["run", "p.jsonl", "--out", "out", "--model", "scripted", "--shard-size", "4"]
    done = subprocess.run([*COMMAND, *words], cwd=tmp_path, stdout=closed, stderr=closed, timeout=120)
    assert done.returncode == 0
    assert ds.dataset(tmp_path / "out" / "data").count_rows() == 12
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == "complete"
    again = subprocess.run([*COMMAND, *words, "--seed", "1"], cwd=tmp_path, stdout=closed, stderr=closed, timeout=120)
    assert again.returncode == 1  # what is refused stays refused


def test_a_worker_outlives_the_reader_of_its_log():
    script = """
import sys, threading
from worker.patient_output import outliving_readers
with outliving_readers():
    for _ in range(3):
        print("x" * 100_000, file=sys.stderr, flush=True)
        print("x" * 100_000, flush=True)
"""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=writer, timeout=60)
    finally:
        os.close(writer)
    assert done.returncode == 0
