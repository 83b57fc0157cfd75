"""What people may do to a run while it goes on, and two runs at once."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from producer.run_progress import RunProgress

STOP_SECONDS = 5.0  # what the documentation promises for pause and cancel


def test_pause_gives_back_what_is_in_work_and_resume_goes_on(
    specmill: Callable[..., str], run_here: Callable[..., SimpleNamespace], client: redis.Redis, tmp_path: Path, help_: SimpleNamespace
) -> None:
    run_here(tmp_path / "plain", 12, 3, model="scripted")
    times: dict[str, float] = {}
    phases: list[str] = []

    def act(progress: RunProgress) -> None:
        phases.append(progress.phase)
        leases = list(client.scan_iter("run:*:lease:*"))
        if progress.shards_done >= 1 and leases and "paused" not in times:
            specmill("pause", tmp_path / "out")
            times["paused"] = time.monotonic()
        elif "paused" in times and "free" not in times and not leases:
            times["free"] = time.monotonic()
            assert "paused" in specmill("status")
        elif "free" in times and "resumed" not in times and time.monotonic() - times["free"] > 1.0:
            assert not leases
            assert list((tmp_path / "out" / "data").glob(".*")) == []
            specmill("resume", tmp_path / "out")
            times["resumed"] = time.monotonic()

    run = run_here(tmp_path / "out", 12, 3, model="scripted:seconds=0.5", on_progress=act)
    assert run.manifest.status == "complete"
    assert times["free"] - times["paused"] < STOP_SECONDS
    assert "paused" in phases
    assert help_.files_of(tmp_path / "out").keys() == help_.files_of(tmp_path / "plain").keys()


@pytest.mark.parametrize("model", ["scripted:seconds=60", "scripted:hang_on=prompt"])
def test_cancel_stops_what_is_in_work_in_time(
    specmill: Callable[..., str], run_here: Callable[..., SimpleNamespace], client: redis.Redis, tmp_path: Path, model: str
) -> None:
    times: list[float] = []

    def act(progress: RunProgress) -> None:
        if not times and progress.elapsed > 0.5 and list(client.scan_iter("run:*:lease:*")):
            specmill("cancel", tmp_path / "out")
            times.append(time.monotonic())

    run = run_here(tmp_path / "out", 12, 3, model=model, on_progress=act)
    assert run.manifest.status == "cancelled"
    again = run_here(tmp_path / "next", 4, 2)  # the workers are free again
    assert again.manifest.status == "complete"
    assert time.monotonic() - times[0] < STOP_SECONDS + 3
    assert list((tmp_path / "out" / "data").iterdir()) == []


def test_two_runs_share_the_workers(run_here: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """The short run is not made to wait for the end of the long one that began before it."""
    ends: dict[str, float] = {}
    begun = threading.Event()

    def run(name: str, records: int) -> None:
        run_here(tmp_path / name, records, 1, model="scripted:seconds=0.1", on_progress=lambda p: p.shards_done and begun.set())
        ends[name] = time.monotonic()

    long = threading.Thread(target=run, args=("long", 60))
    long.start()
    assert begun.wait(30)
    run("short", 6)
    assert "long" not in ends
    long.join()
