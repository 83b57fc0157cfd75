"""`--metrics-port`: what Prometheus reads is what the run says of itself."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from producer.metrics import RunMetrics, serve_metrics
from producer.run_progress import RunProgress
from schemas.errors import SpecmillError
from schemas.progress import Tally

TALLY = Tally(
    rows=9,
    prompt_tokens=70,
    completion_tokens=300,
    cycles=100,
    drafted_by_depth=(100, 90),
    accepted_by_depth=(60, 20),
    expected_accepted=79.5,
)
PROGRESS = RunProgress(
    rows_total=30,
    rows_ok=8,
    rows_failed=1,
    shards_total=4,
    shards_done=1,
    in_flight=2,
    tally=TALLY,
    tokens_per_second=41.5,
    eta_seconds=12.0,
    elapsed=3.0,
    workers=(),
    phase="generating",
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "run")): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_number_of_the_progress_is_served():
    metrics, port = RunMetrics("r"), free_port()
    with serve_metrics(metrics, port):
        assert read(port) == {}
        metrics.update(PROGRESS)
        found = read(port)
    assert found["specmill_rows", "ok"] == 8
    assert found["specmill_rows", "failed"] == 1
    assert found["specmill_shards", "issued"] == 2
    assert (found["specmill_tokens_per_second",], found["specmill_eta_seconds",]) == (41.5, 12.0)
    assert (found["specmill_tokens_total", "completion"], found["specmill_tokens_total", "prompt"]) == (300, 70)
    assert [found["specmill_drafted_total", depth] for depth in "12"] == [100, 90]
    assert [found["specmill_accepted_total", depth] for depth in "12"] == [60, 20]
    assert found["specmill_expected_accepted_total",] == 79.5


def test_the_page_goes_with_the_session_and_a_taken_port_is_one_clear_error():
    metrics, port = RunMetrics("r"), free_port()
    with (
        serve_metrics(metrics, port),
        pytest.raises(SpecmillError, match=f"{port}: .*--metrics-port takes another one"),
        serve_metrics(metrics, port),
    ):
        pass
    with pytest.raises(urllib.error.URLError):
        read(port)


def test_a_run_serves_its_metrics(tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(40)))
    port = free_port()
    words = [
        "run",
        "p.jsonl",
        "--out",
        "o",
        "--model",
        "scripted:seconds=0.05",
        "--shard-size",
        "10",
        "--quiet",
        "--metrics-port",
        str(port),
    ]
    run = subprocess.Popen(
        [sys.executable, "-P", "-m", "producer.cli", *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seen, deadline = 0, time.monotonic() + 60
    try:
        while run.poll() is None and time.monotonic() < deadline:
            try:
                seen = max(seen, read(port).get(("specmill_rows", "ok"), 0))
            except OSError:
                continue
    finally:
        run.kill()
        _, said = run.communicate()
    assert (run.returncode, seen > 0) == (0, True), said


def test_the_documentation_names_every_metric():
    page = Path(__file__).parents[2] / "docs" / "monitoring.md"
    metrics = RunMetrics("r")
    metrics.update(PROGRESS)
    names = {sample.name for family in metrics.collect() for sample in family.samples}
    table = [line for line in page.read_text().splitlines() if line.startswith("| `specmill_")]
    assert names == {name for line in table for name in re.findall(r"`(specmill_\w+)", line.split(" | ")[0])}
