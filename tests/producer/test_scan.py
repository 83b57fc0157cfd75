"""A file that several processes read is the file that one process reads."""

import json
import os
import signal
import subprocess
import sys

import pytest

from producer import scan_processes
from producer.prompt_template import PromptTemplate
from producer.record import RecordReader
from producer.scan import PartScanner
from producer.source import PromptSource
from schemas.errors import InputError


def mixed_lines(count):
    """Records of every kind, blank and bad lines, an id that stands twice, a column that comes late and one that changes its type late."""
    for number in range(count):
        line = {"id": f"r{number}", "prompt": f"Say {number}.", "score": number if number < count - 3 else number + 0.5}
        if number % 7 == 3:
            line = {"id": f"r{number}", "messages": [{"role": "user", "content": "Hi"}], "meta": {"deep": [number]}}
        if number == count - 2:
            line |= {"late": True, "id": "r1"}
        yield "not JSON" if number % 11 == 5 else json.dumps(line)
        if number % 5 == 0:
            yield ""


def scanned(path, reader, **options):
    return PromptSource.scan(path, reader, shard_size=4, keep_bad=True, **options)


def same(one, other):
    names = ("records", "bad", "digest", "columns", "has_prompt", "has_messages", "duplicates", "starts", "requested")
    return [name for name in names if getattr(one, name) != getattr(other, name)] == []


@pytest.fixture
def several_processes(monkeypatch):
    """Two processes for any file, and small parts."""
    monkeypatch.setattr(scan_processes, "BYTES_PER_PROCESS", 1)
    monkeypatch.setattr(scan_processes, "MOST_PROCESSES", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("producer.scan.PART_BYTES", 300)


@pytest.mark.parametrize("limit", [None, 30])
def test_several_processes_find_what_one_finds(tmp_path, request, limit):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(mixed_lines(60)))
    reader = RecordReader(system="Be brief.", template=PromptTemplate("{{ id }}: {{ prompt }}"))
    alone = scanned(path, reader, limit=limit)
    request.getfixturevalue("several_processes")
    assert same(scanned(path, reader, limit=limit), alone)
    assert alone.records == (limit or 60)


def test_what_a_process_refuses_the_parent_refuses(tmp_path, several_processes):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", **{f"c{row}-{i}": i for i in range(30)}}) + "\n" for row in range(40)))
    with pytest.raises(InputError, match="line 34: column 'c33-10' is one more than 1000"):
        scanned(path, RecordReader())


def test_a_process_that_dies_is_an_error_and_no_other_is_left(tmp_path, several_processes, monkeypatch):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(mixed_lines(60)))
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        os.kill(started[-1].pid, signal.SIGKILL)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(InputError, match="ended without an answer"):
        scanned(path, RecordReader())
    assert [process.poll() for process in started] == [-signal.SIGKILL] * 2


def test_a_process_ends_with_its_parent(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "p"}\n')
    script = (
        "import subprocess, sys, os\n"
        "from pathlib import Path\n"
        "from producer.record import RecordReader\n"
        "from producer.scan import PartScanner\n"
        "from producer.scan_processes import _Children\n"
        f"children = _Children(PartScanner(Path({str(path)!r}), RecordReader(), 4), 1).__enter__()\n"
        "print(children._all[0].pid, flush=True)\n"
        "os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60)
    # The child holds the write end of nothing that we read, so `run` returns; the child itself ends with its input.
    pid = int(done.stdout)
    listing = ["ps", "-o", "stat=", "-p", str(pid)]
    for _ in range(2000):
        state = subprocess.run(listing, capture_output=True, text=True).stdout.strip()
        if not state or state.startswith("Z"):
            return
    pytest.fail(f"process {pid} outlived its parent")


def test_parts_hold_whole_shards(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"p{i}\n" for i in range(20)))
    scanner = PartScanner(path, RecordReader(plain_text=True), 8)
    assert [(part.row, part.records, part.line) for part in scanner.parts(None)] == [(0, 20, 1)]
    assert [len(scanner.scan(part).starts) for part in scanner.parts(19)] == [3]
