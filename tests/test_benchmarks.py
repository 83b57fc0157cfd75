"""The page of benchmarks is made of results by a command, and is that of the results that lie beside it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench" / "results", ROOT / "docs" / "benchmarks.md"
pytestmark = pytest.mark.skipif(not (ROOT / "bench" / "table.py").exists(), reason="not a checkout")


def table(folder):
    command = [sys.executable, str(ROOT / "bench" / "table.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def result(**changes):
    measure = {"what": "a | b", "unit": "ms", "ours": [3.0, 1.0, 2.0], "peer": "copy", "theirs": [2.0, 2.0, 2.0], "goal": "ratio ≤ 3"}
    alone = {"what": "size", "unit": "MB", "ours": [12345.6], "peer": "", "theirs": [], "goal": ""}
    machine = {"processor": "abacus", "cores": "2"}
    values = {"name": "demo", "title": "Demo", "how": "By hand.", "date": "2026-01-01T00:00+00:00", "machine": machine}
    return values | {"versions": {"python": "3"}, "measures": [measure, alone]} | changes


def test_a_result_becomes_a_table_with_its_machine_and_versions(tmp_path):
    (tmp_path / "demo.json").write_text(json.dumps(result()))
    done = table(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "## Demo\n\nBy hand.\n\n2026-01-01T00:00+00:00; processor abacus, cores 2; python 3." in done.stdout
    assert "| a \\| b | 1.00 / 2.00 / 3.00 ms | copy | 2.00 / 2.00 / 2.00 | **0.500 / 1.00 / 1.50** | ratio ≤ 3 |" in done.stdout
    assert "| size | 12,346 MB |  |  |  |  |" in done.stdout


def test_a_folder_without_results_says_so(tmp_path):
    done = table(tmp_path)
    assert done.returncode == 1
    assert "holds no results" in done.stderr


def test_the_page_is_that_of_the_results():
    assert table(RESULTS).stdout == PAGE.read_text(encoding="utf-8")
