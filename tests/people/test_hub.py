"""Prompts out of a dataset on the hub, and a dataset pushed there, by the hub's own library against a stand-in of the hub."""

import json
import os
import subprocess
import sys

import pytest
from hub_server import HubServer, serving
from scripted_dataset import make_dataset

LINES = b'{"id": "a", "prompt": "hi"}\n{"id": "b", "prompt": "yo"}\n'


@pytest.fixture
def hub(tmp_path):
    with serving() as server:
        yield server


def specmill(hub: HubServer, folder, *words):
    """The command in a process of its own: where the hub is is read once, when its library is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}
    environment |= {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-P", "-m", "producer.cli", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done


def dry(hub, folder, url):
    return specmill(hub, folder, "run", url, "--out", folder / "out", "--model", "scripted", "--dry-run")


def test_prompts_are_read_from_files_patterns_and_folders_of_the_hub(hub, tmp_path):
    hub.made = {}
    hub.files = {"README.md": b"# x", "data/a.jsonl": LINES, "data/b.jsonl": LINES.replace(b'"a"', b'"c"').replace(b'"b"', b'"d"')}
    one = dry(hub, tmp_path, "hf://datasets/someone/prompts/data/a.jsonl")
    assert "2 records × 1" in one.stdout, one.stderr
    assert "hf://datasets/someone/prompts/data/a.jsonl: 2 records" in one.stderr
    assert "4 records × 1" in dry(hub, tmp_path, "hf://datasets/someone/prompts/data/*.jsonl").stdout
    assert "4 records × 1" in dry(hub, tmp_path, "hf://datasets/someone/prompts").stdout
    nothing = dry(hub, tmp_path, "hf://datasets/someone/prompts/data/*.csv")
    assert (nothing.returncode, "no file matches hf://datasets/someone/prompts/data/*.csv" in nothing.stderr) == (1, True)


def test_a_dataset_that_is_not_there_is_one_clear_error(hub, tmp_path):
    done = dry(hub, tmp_path, "hf://datasets/someone/else/data.jsonl")
    assert (done.returncode, "cannot read hf://datasets/someone/else/data.jsonl" in done.stderr) == (1, True), done.stderr


def test_a_dataset_is_pushed_whole_and_an_earlier_one_goes(hub, tmp_path):
    out = make_dataset(tmp_path, [{"prompt": f"p{i}"} for i in range(20)])
    (out / "README.md").write_text("---\ntags:\n- specmill\n---\nA card.\n")
    hub.files = {"data/part-00099.parquet": b"old", "notes.txt": b"mine"}
    words = ["push", out, "hf://datasets/someone/prompts"]
    shown = specmill(hub, tmp_path, *words, "--dry-run")
    parts = sorted(f"data/{path.name}" for path in (out / "data").iterdir())
    assert [line.split()[-1] for line in shown.stdout.splitlines()[:-1]][:5] == ["README.md", "manifest.json", *parts]
    assert "nothing was uploaded" in shown.stdout
    assert hub.made is None
    done = specmill(hub, tmp_path, *words, "--private")
    assert done.returncode == 0, done.stderr
    assert "/commit/" in done.stdout
    assert "private" in json.dumps(hub.made)
    assert {name for name in hub.files if name.startswith("data/")} == set(parts)
    assert hub.files["notes.txt"] == b"mine"
    assert all(hub.files[name] == (out / name).read_bytes() for name in ("README.md", "manifest.json", *parts))


@pytest.mark.parametrize("target", ["someone/prompts", "hf://datasets/prompts", "hf://models/a/b", "hf://datasets/a/b/c"])
def test_a_target_that_is_no_dataset_is_refused(hub, tmp_path, target):
    done = specmill(hub, tmp_path, "push", tmp_path, target)
    assert (done.returncode, "the target must be hf://datasets/OWNER/NAME" in done.stderr) == (1, True)


def test_an_unfinished_dataset_is_not_pushed(hub, tmp_path):
    out = make_dataset(tmp_path, [{"prompt": f"p{i}"} for i in range(20)], landed=1)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    done = specmill(hub, tmp_path, "push", out, "hf://datasets/someone/prompts")
    assert (done.returncode, "only a complete dataset is pushed" in done.stderr, hub.made) == (1, True, None), done.stderr
