"""Makes the pictures of the documentation anew: `make pictures`, or `make pictures DATASET=…` with a dataset's report.

Flower and `watch` show a scripted run. The report needs a dataset of a real model; without one its pictures stay as they are.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser import screenshot
from flower_page import COMMAND, flower_page
from rich.console import Console
from rich.terminal_theme import MONOKAI

from producer.report import Report
from producer.run_watch import RunWatch
from producer.watch_display import watch_view

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
RECORDS = 1200
WATCH_SHARE = 6  # the picture of `watch` is taken when this part of the rows, one in so many, is done


def report_pictures(dataset: Path) -> None:
    """`report-light.png` and `report-dark.png` of a dataset."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(Report.of_dataset(dataset).html(), encoding="utf-8")
        for name in ("light", "dark"):
            screenshot(page.as_uri(), PICTURES / f"report-{name}.png", width=1100, height=1330, dark=name == "dark")


def run_pictures() -> None:
    """`watch.png` and `flower-tasks.png` of a run that goes on meanwhile."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "prompts.jsonl").write_text(
            "".join(json.dumps({"prompt": f"p{i}" + " BAD" * (i % 99 == 7)}) + "\n" for i in range(RECORDS))
        )
        words = ["run", "prompts.jsonl", "--out", "out", "--model", "scripted:seconds=0.3,fail_on=BAD", "--mtp", "scripted", "--depth", "3"]
        words += ["--workers", "3", "--shard-size", "16", "--quiet"]
        with flower_page(folder) as (environment, page):
            run = subprocess.Popen([*COMMAND, *words], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
            try:
                _watch_picture(folder, environment["SPECMILL_BROKER"])
                screenshot(f"{page}/tasks", PICTURES / "flower-tasks.png", width=1500, height=700, settle_seconds=5)
            finally:
                run.terminate()
                run.wait()


def _watch_picture(folder: Path, broker_url: str) -> None:
    out = folder / "out"
    while not (out / "manifest.json").exists():
        time.sleep(0.1)
    watch = RunWatch(str(out), broker_url)
    while (view := watch.look()).rows_done * WATCH_SHARE < view.rows_total:
        time.sleep(0.5)
    console = Console(record=True, width=116, force_terminal=True, file=sys.stderr)
    console.print(watch_view(view))
    page = folder / "watch.html"
    page.write_text(console.export_html(theme=MONOKAI).replace("<body>", '<body style="margin: 16px">'), encoding="utf-8")
    screenshot(page.as_uri(), PICTURES / "watch.png", width=1140, height=170)


if __name__ == "__main__":
    run_pictures()
    for argument in sys.argv[1:2]:
        report_pictures(Path(argument))
