"""Steps that take a while say how far they are, seldom, and how long it will take."""

import pytest

from worker.engine import model_store, smollm2, step_report
from worker.engine.hub import _lines_instead_of_bars
from worker.engine.step_report import StepReport, time_left


def test_a_line_comes_now_and_then_with_what_is_left():
    lines, now = [], [100.0]
    step = StepReport(lines.append, "downloading", 90, "MB", clock=lambda: now[0])
    for seconds, done in ((0, 0), (2, 20), (6, 0.1), (10, 30), (12, 40), (20, 60), (30, 90)):
        now[0] = 100.0 + seconds
        step.at(done)
    assert lines == [
        "downloading: 30 of 90 MB (33%), about 20 s left",
        "downloading: 60 of 90 MB (67%), about 10 s left",
        "downloading: 90 of 90 MB (100%), about 0 s left",
    ]


def test_an_estimate_is_as_exact_as_it_can_be():
    assert [time_left(seconds) for seconds in (0.4, 99, 101, 3500, 12_000)] == ["0 s", "99 s", "2 min", "58 min", "3 h 20 min"]


def test_a_huge_model_file_is_hashed_with_progress(tmp_path, own_cache, monkeypatch):
    monkeypatch.setattr(step_report, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(model_store, "DIGEST_BLOCK", 1 << 20)
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(3 << 20))
    lines = []
    digest = model_store.digest_file(file, lines.append)
    assert [line.split(",")[0] for line in lines] == [f"checking model.safetensors: {n} of 3 MB ({n / 3:.0%})" for n in (1, 2, 3)]
    lines.clear()
    assert model_store.digest_file(file, lines.append) == digest
    assert lines == []


def test_a_download_is_watched_by_what_it_has_written(tmp_path, monkeypatch):
    monkeypatch.setattr(step_report, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(smollm2, "LOOK_SECONDS", 0.01)
    script = 'dd if=/dev/zero of="$TMPDIR/part" bs=1000000 count=31 2>/dev/null\n'
    script += 'while [ ! -e "$TMPDIR/seen" ]; do sleep 0.01; done; echo said; exit 3'

    def report(line):
        lines.append(line)
        if line.startswith("downloading: 31 of 93 MB (33%)"):
            (tmp_path / "seen").touch()

    lines: list[str] = []
    assert smollm2._watched(["sh", "-c", script], tmp_path, report) == (3, "said\n")
    assert (tmp_path / "seen").exists()


@pytest.mark.filterwarnings("ignore::tqdm.TqdmMonitorWarning")
def test_the_hubs_bars_become_lines_where_they_cannot_be_redrawn(monkeypatch):
    monkeypatch.setattr("worker.engine.hub.SECONDS_BETWEEN", 0.0)
    lines: list[str] = []
    with _lines_instead_of_bars(lines.append)(total=10, unit="B", name="huggingface_hub.snapshot_download") as bar:
        for _ in range(10):
            bar.update(1)
    assert "100%" in lines[-1]
    assert not any("\r" in line for line in lines)
