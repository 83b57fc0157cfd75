"""What a browser shows of the real Flower after a real run."""

import html
import json
import re
import subprocess

import pytest
from browser import needs_chromium, page_html
from flower_page import COMMAND, flower_page

from producer.manifest_file import read_manifest

pytest.importorskip("flower")


@needs_chromium
@pytest.mark.slow
def test_every_shard_is_a_line_that_says_run_shard_rows_speed_and_acceptance(tmp_path):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}" + " BAD" * (i == 5)}) + "\n" for i in range(30)))
    with flower_page(tmp_path) as (environment, page):
        words = ["run", "p.jsonl", "--out", "o", "--model", "scripted:fail_on=BAD", "--mtp", "scripted", "--shard-size", "10", "--quiet"]
        subprocess.run([*COMMAND, *words], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
        text = page_html(f"{page}/tasks", settle_seconds=5)
    rows = [
        [html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    ]
    tasks = sorted(row for row in rows if row and row[0] == "specmill.generate_shard")
    run = read_manifest(tmp_path / "o").spec.run_id
    assert sorted(task[1] for task in tasks) == [f"{run}/{shard}" for shard in range(3)]
    assert {task[2] for task in tasks} == {"SUCCESS"}
    results = {task[1][-1]: task[3] for task in tasks}
    assert re.search(r"10 rows, 1 failed, \d+ tokens, [\d.]+ tok/s, acceptance 0\.\d\d 0\.\d\d", results["0"])
    assert re.search(r"10 rows, \d+ tokens, [\d.]+ tok/s, acceptance 0\.\d\d 0\.\d\d", results["1"])
