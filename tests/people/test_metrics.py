"""`--metrics-port`: what Prometheus reads is what the run says of itself."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from producer.broker import EmbeddedBroker
from producer.cli import main
from producer.local_workers import WorkerSettings
from producer.metrics import RunMetrics
from producer.run_progress import Events, RunProgress
from schemas.errors import SpecmillError
from schemas.progress import Tally
from worker.metrics import WorkerMetrics, serve_metrics
from worker.worker_counts import WorkerCounts

DOCS = Path(__file__).parents[2] / "docs"

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
    queued=1,
    events=Events(retries=4, lease_losses=2, engine_restarts=1),
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name not in ("run", "worker"))): sample.value
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
    assert found["specmill_queue_depth",] == 1
    assert [found[f"specmill_{name}_total",] for name in ("retries", "lease_losses", "engine_restarts")] == [4, 2, 1]


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


def test_a_worker_serves_its_own(tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}" + " BAD" * (i == 5)}) + "\n" for i in range(20)))
    command, port = [sys.executable, "-P", "-m", "producer.cli"], free_port()
    with EmbeddedBroker(tmp_path / "broker") as broker:
        environment = {**os.environ, "SPECMILL_BROKER": broker.url}
        worker = subprocess.Popen(
            [*command, "worker", "--metrics-port", str(port), "--drain-timeout", "0"],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            words = [
                "run",
                "p.jsonl",
                "--out",
                "o",
                "--model",
                "scripted:fail_on=BAD",
                "--mtp",
                "scripted",
                "--shard-size",
                "5",
                "--workers",
                "0",
            ]
            run = subprocess.run([*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
            assert run.returncode == 0, run.stderr
            deadline = time.monotonic() + 30
            while (found := read(port))["specmill_worker_messages_total", "landed"] < 4:  # the run knows a little earlier than the worker
                assert time.monotonic() < deadline
        finally:
            worker.terminate()
            worker.wait(60)
    rows = ds.dataset(tmp_path / "o" / "data").to_table().to_pylist()
    assert (found["specmill_worker_rows_total", "ok"], found["specmill_worker_rows_total", "failed"]) == (19, 1)
    assert found["specmill_worker_tokens_total", "completion"] == sum(row["completion_tokens"] for row in rows)
    for depth in (1, 2):
        accepted = sum(row["acceptance"]["accepted_by_depth"][depth - 1] for row in rows if row["error"] is None)
        assert found["specmill_worker_accepted_total", str(depth)] == accepted
    assert (found["specmill_worker_lease_losses_total",], found["specmill_worker_engine_restarts_total",]) == (0, 0)


def test_what_a_worker_did_in_vain_is_counted_too():
    counts = WorkerCounts()
    starts = 1
    for attempt, outcome in ((1, "crashed"), (2, "lost"), (1, "64 rows, 4000 tokens")):
        counts.begin(attempt)
        counts.progress(Tally(rows=1, completion_tokens=3))
        counts.progress(Tally(rows=2, failed=1, completion_tokens=10, prompt_tokens_left=5))
        counts.end(outcome)
    metrics, port = WorkerMetrics("w", counts, lambda: starts, lambda: True), free_port()
    with serve_metrics(metrics, port):
        starts = 3
        counts.begin(1)
        counts.progress(Tally(completion_tokens=1))
        found = read(port)
    assert found["specmill_worker_tokens_total", "completion"] == 31
    assert (found["specmill_worker_rows_total", "ok"], found["specmill_worker_rows_total", "failed"]) == (3, 3)
    assert [found["specmill_worker_messages_total", outcome] for outcome in ("landed", "crashed", "lost")] == [1, 1, 1]
    assert [found[f"specmill_worker_{name}_total",] for name in ("retries", "lease_losses", "engine_restarts")] == [1, 1, 2]
    assert found["specmill_worker_busy",] == 1


def test_workers_of_one_command_have_ports_in_a_row_and_a_taken_one_is_an_error():
    port = free_port()
    assert [f"--metrics-port={port + n}" in WorkerSettings(metrics_port=port).words(n) for n in (0, 1)] == [True, True]
    with serve_metrics(RunMetrics("r"), port):
        words = ["worker", "--broker", "redis://127.0.0.1:1/0", "--workers", "2", "--metrics-port", str(port)]
        done = CliRunner().invoke(main, words)
    assert (done.exit_code, f"{port}: " in done.stderr, "--metrics-port takes another one" in done.stderr) == (1, True, True)


def families():
    """Every metric that anything exports, with its label names."""
    metrics = RunMetrics("r")
    metrics.update(PROGRESS)
    counts = WorkerCounts()
    counts.progress(TALLY)
    both = [*metrics.collect(), *WorkerMetrics("w", counts, lambda: 1, lambda: False).collect()]
    return {sample.name: {*sample.labels} for family in both for sample in family.samples}


def test_the_dashboard_asks_for_what_is_exported_and_nothing_else():
    known = families()
    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    named = {name for query in queries for name in re.findall(r"specmill_\w+", query)}
    assert named <= known.keys()
    assert {name for name in known if "expected" not in name and name != "specmill_worker_messages_total"} - named == set()
    for query in queries:
        asked = set(re.findall(r"(\w+)\s*=~?\s*\"", query)) | {
            label for labels in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r",\s*", labels)
        }
        labels = set().union(*(known[name] for name in re.findall(r"specmill_\w+", query)))
        assert asked <= labels | {"instance", "job"}, query
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(places) == len(set(places))


def test_the_documentation_names_every_metric():
    table = [line for line in (DOCS / "monitoring.md").read_text().splitlines() if line.startswith("| `specmill_")]
    assert {*families()} == {name for line in table for name in re.findall(r"`(specmill_\w+)", line.split(" | ")[0])}
