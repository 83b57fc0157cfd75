"""`specmill watch`: a run seen from outside, on a real broker and at rest."""

import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console
from scripted_dataset import make_dataset

from producer.broker import EmbeddedBroker
from producer.cli import SECTIONS, main
from producer.rate_meter import RateMeter
from producer.run_watch import RunWatch
from producer.watch_display import watch_line, watch_view
from schemas.profile import Backend
from schemas.progress import Tally
from worker.fleet import Fleet
from worker.ledger import Ledger
from worker.redis_client import make_client
from worker.reports import LiveReport

BACKEND = Backend(device="cpu", chip="abacus", mlx="-", blas="", row_invariant=True)


def report(beat, shard, tokens, rows=0):
    return LiveReport(beat, shard, Tally(rows=rows, completion_tokens=tokens, drafted_by_depth=(10,), accepted_by_depth=(4,)), BACKEND)


def test_a_rate_is_that_of_work_between_two_reports_on_one_shard():
    meter = RateMeter()
    for beat, (now, shard, tokens) in enumerate([(0.0, 1, 50), (1.0, 1, 150), (2.0, 1, 250), (9.0, 2, 10), (10.0, 2, 110)]):
        meter.see({"w": report(beat, shard, tokens)}, now)
    assert meter.rate("w") == pytest.approx(100.0)
    meter.see({"w": report(4, 2, 110)}, 20.0)  # the same report again says nothing
    assert meter.rate("w") == pytest.approx(100.0)
    meter.see({}, 21.0)
    assert meter.rate("w") == 0.0


def test_no_rate_is_given_over_an_instant():
    meter = RateMeter()
    meter.see({"w": report(0, 1, 0)}, 0.0)
    meter.see({"w": report(1, 1, 5000)}, 0.1)
    assert meter.rate("w") == 0.0


@pytest.fixture
def on_broker(tmp_path):
    """A dataset of which two of four shards have landed, and its run on a broker with one worker."""
    out = make_dataset(tmp_path, [{"prompt": f"p{i}"} for i in range(30)], landed=2, max_tokens=5)
    from producer.manifest_file import read_manifest

    spec = read_manifest(out).spec
    with EmbeddedBroker(tmp_path / "broker") as broker, make_client(broker.url) as client:
        ledger = Ledger(client, spec.run_id)
        ledger.open(spec, [0, 1])
        Fleet(client).add_run(spec.run_id)
        ledger.report_live("w", report(1, 2, 100, rows=3))
        yield out, broker.url, ledger


def test_a_run_on_a_broker_is_seen_with_its_workers(on_broker):
    out, url, ledger = on_broker
    now = [0.0]
    watch = RunWatch(str(out), url, clock=lambda: now[0])
    first = watch.look()
    assert (first.rows_done, first.rows_total, first.shards_done, first.shards_total) == (19, 30, 2, 4)
    now[0] = 2.0
    ledger.report_live("w", report(2, 2, 300, rows=5))
    second = watch.look()
    assert second.tokens_per_second == pytest.approx(100.0)
    assert second.eta_seconds == pytest.approx(9.0)
    assert second.acceptance == [0.4]
    assert "21/30 rows (70%), 1 workers, 100.0 tok/s, acceptance 1: 0.40, ETA 0:09" in watch_line(second)
    console = Console(file=io.StringIO(), width=120)
    console.print(watch_view(second))
    for said in ("abacus", "100.0", "1: 0.40", "run test"):
        assert said in console.file.getvalue()


def test_a_run_is_found_by_the_beginning_of_its_id_too(on_broker):
    _, url, ledger = on_broker
    done = CliRunner().invoke(main, ["watch", "te", "--broker", url, "--once", "--json"])
    assert json.loads(done.stdout)["rows_done"] == 19
    ledger.pause("lunch")
    assert "paused: " in CliRunner().invoke(main, ["watch", "te", "--broker", url, "--once"]).output
    unknown = CliRunner().invoke(main, ["watch", "zz", "--broker", url, "--once"])
    assert (unknown.exit_code, "no run begins with 'zz'" in unknown.stderr) == (1, True)


def test_a_folder_at_rest_is_described_once(tmp_path):
    out = make_dataset(tmp_path, [{"prompt": "p"}])
    assert CliRunner().invoke(main, ["watch", str(out)]).output == "complete: 1/1 rows (100%)\n"
    (tmp_path / "half").mkdir()
    half = make_dataset(tmp_path / "half", [{"prompt": f"p{i}"} for i in range(20)], landed=1)
    assert "stopped: 8/20 rows (40%), the same `specmill run" in CliRunner().invoke(main, ["watch", str(half)]).output
    assert "holds no run" in CliRunner().invoke(main, ["watch", str(tmp_path / "half" / "out" / "data")]).stderr


def test_a_real_run_is_watched_to_its_end(tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(40)))
    command = [sys.executable, "-P", "-m", "producer.cli"]
    options = ["--out", "o", "--model", "scripted:seconds=0.05", "--shard-size", "10", "--quiet"]
    run = subprocess.Popen([*command, "run", "p.jsonl", *options], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        seen = []
        while run.poll() is None:
            if (tmp_path / "o" / "manifest.json").exists():
                look = subprocess.run(
                    [*command, "watch", "o", "--once", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60
                )
                seen.append(json.loads(look.stdout))
    finally:
        run.kill()
        run.wait()
    assert [view["rows_done"] for view in seen] == sorted(view["rows_done"] for view in seen)
    assert {"running"} <= {view["state"] for view in seen}
    assert RunWatch(str(tmp_path / "o"), None).look().state == "complete"


def test_help_lists_every_command_under_what_it_is_for():
    text = CliRunner().invoke(main, ["--help"]).output
    listed = [command.name for commands in SECTIONS.values() for command in commands]
    assert sorted(listed) == sorted(main.commands)
    for title in SECTIONS:
        assert f"{title}:" in text
