"""An unfinished dataset is read as far as it has landed, whatever its manifest knew last, and says how it goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner
from scripted_dataset import make_dataset

from producer.cli import main
from producer.dataset import Dataset
from producer.landed_parts import UNKNOWN_BACKEND
from producer.manifest_file import read_manifest, write_manifest
from schemas.errors import SpecmillError

PATIENCE_SECONDS = 60.0


def specmill(*words):
    return CliRunner().invoke(main, [*map(str, words)])


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run whose processes were killed right after a part had landed; and what was read of it while it ran."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "p.jsonl").write_text("".join(json.dumps({"id": f"r{i}", "prompt": f"p{i}"}) + "\n" for i in range(400)))
    words = ["run", "p.jsonl", "--out", "out", "--model", "scripted:seconds=0.05", "--shard-size", "4", "--quiet"]
    run = subprocess.Popen([sys.executable, "-P", "-m", "producer.cli", *words], cwd=folder, start_new_session=True)
    out = folder / "out"
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(list(out.glob("data/part-*.parquet"))) < 3:
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        while_it_ran = specmill("watch", out, "--once").output, Dataset.open(out).state
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    write_manifest(out, replace(read_manifest(out), shards=()))  # as it was when the session began: the next one is written seconds later
    return out, while_it_ran


def test_every_part_that_has_landed_is_read(killed):
    out, (_, state) = killed
    parts = len(list(out.glob("data/part-*.parquet")))
    assert (state, read_manifest(out).status, Dataset.open(out).state) == ("running", "running", "stopped")
    report = specmill("report", out, "--json")
    found = json.loads(report.stdout)
    assert (found["rows"], found["status"]) == (4 * parts, "stopped")
    exported = specmill("export", out, "--to", "jsonl")
    assert [json.loads(line)["record_id"] for line in exported.stdout.splitlines()] == [f"r{i}" for i in range(4 * parts)]
    seen = specmill("watch", out)
    assert f"stopped: {4 * parts}/400 rows" in seen.output
    shown = specmill("show", out, "--row", f"r{4 * parts - 1}")
    assert shown.exit_code == 0
    for said in (specmill("report", out, "--no-html").output, exported.stderr, seen.output, shown.stderr, found["unfinished"][-1]):
        assert "the same `specmill run … --out` command, given again, goes on with the rest" in said


def test_a_resume_counts_what_is_there_and_not_what_the_manifest_knew(tmp_path):
    out = make_dataset(tmp_path, [{"prompt": f"p{i}"} for i in range(20)], landed=2)
    write_manifest(out, replace(read_manifest(out), shards=()))
    done = specmill("run", tmp_path / "prompts.jsonl", "--out", out, "--model", "scripted", "--mtp", "scripted")
    assert (done.exit_code, "20 rows ok, 0 failed" in done.stdout) == (0, True), done.output
    assert f"going on with the run in {out}: 2 of 3 shards already there" in done.stderr


def test_the_backend_of_a_part_comes_from_the_journal(killed):
    out, _ = killed
    assert UNKNOWN_BACKEND not in {shard.backend for shard in Dataset.open(out).manifest.shards}


def test_what_does_not_count_is_named(tmp_path):
    lines = [{"prompt": f"p{i}"} for i in range(20)]
    out = make_dataset(tmp_path, lines, landed=2)
    (tmp_path / "other").mkdir()
    other = make_dataset(tmp_path / "other", lines, seed=1)
    (out / "data" / "part-00002.parquet").write_bytes((other / "data" / "part-00002.parquet").read_bytes())
    (out / "data" / "part-00001.parquet").unlink()
    (out / "data" / "mine.parquet").write_bytes(b"x")
    said = specmill("export", out, "--to", "csv").stderr
    assert "is unfinished (stopped): 8 of 20 rows, 1 of 3 shards" in said
    for reason in ("mine.parquet is not a part file", "part-00002.parquet belongs to another run", "part-00001.parquet is gone"):
        assert f"not counted: {out / 'data'}/{reason}" in said
    verify = specmill("verify", out)
    assert (verify.exit_code, "is unfinished" in verify.stderr, "Traceback" in verify.output) == (2, True, False)


def test_a_complete_dataset_is_taken_at_its_manifests_word(tmp_path):
    out = make_dataset(tmp_path, [{"prompt": "p"}])
    (out / "data" / "mine.parquet").write_bytes(b"x")
    dataset = Dataset.open(out)
    assert (dataset.state, dataset.unfinished(), dataset.uncounted) == ("complete", [], ())


def test_a_broken_journal_is_one_clear_error(tmp_path):
    out = make_dataset(tmp_path, [{"prompt": f"p{i}"} for i in range(20)], landed=2)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "shards": manifest["shards"][:1]}))
    (out / "log" / "attempts-0007.jsonl").write_text("{}\n")
    with pytest.raises(SpecmillError, match=r"attempts-0007\.jsonl is not a journal that this specmill can read"):
        Dataset.open(out)
