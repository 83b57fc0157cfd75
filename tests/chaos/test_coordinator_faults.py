"""What breaks around the coordinator alone: its network to the broker, and the disk that it lands on."""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos_fleet import HASTY, ChaosFleet, files_of, poll

SHAPE = (36, 3, 2, "scripted:seconds=0.04")
PARTS = SHAPE[0] // SHAPE[1]
WORKERS = 1
DISK_BYTES = 1 << 20


@pytest.fixture
def fleet(machines: ChaosFleet, undisturbed: dict[str, str]) -> Iterator[ChaosFleet]:
    """A run that has landed its first part; its end is waited for and judged when the test has done its worst."""
    poll(lambda: machines.pids("worker"), what="a worker")
    machines.next_run()
    with judged(machines, undisturbed):
        yield machines


@contextlib.contextmanager
def judged(machines: ChaosFleet, undisturbed: dict[str, str]) -> Iterator[None]:
    try:
        poll(lambda: machines.landed() >= 1, what="a part")
        yield
        machines.finish()
        poll(lambda: machines.complaints(undisturbed) == [], 20, "a run without complaints")
    except AssertionError:
        print(machines.complaints(undisturbed), machines.logs())
        raise


def test_connections_that_are_reset_again_and_again(fleet: ChaosFleet) -> None:
    for _ in range(4):
        fleet.coordinator_network.reset()
        before = fleet.landed()
        poll(lambda before=before: fleet.landed() > before or not fleet.running)


def test_a_network_that_swallows_everything_for_longer_than_a_lease(fleet: ChaosFleet) -> None:
    """Workers go on with what is queued meanwhile; the coordinator hands nothing out twice when it is back."""
    fleet.coordinator_network.blackhole()
    begun = time.monotonic()
    poll(lambda: time.monotonic() - begun > 2 * HASTY["lease"])
    fleet.coordinator_network.heal()


def test_both_ends_at_once(fleet: ChaosFleet) -> None:
    networks = [fleet.coordinator_network, fleet.networks[-1]]
    random.shuffle(networks)
    networks[0].blackhole()
    networks[1].reset()
    begun = time.monotonic()
    poll(lambda: time.monotonic() - begun > HASTY["lease"])
    networks[0].heal()
    networks[0].reset()


def test_a_coordinator_that_is_killed_while_its_network_is_dead(fleet: ChaosFleet) -> None:
    assert fleet.coordinator is not None
    fleet.coordinator_network.blackhole()
    fleet.coordinator.kill()
    fleet.coordinator.wait()
    fleet.coordinator_network.heal()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, and a disk that is really full when it is."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "specmill-test", str(place)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system can only be mounted as root, where the system allows it")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def fill(small_disk: Path) -> Callable[[], Path]:
    """`fill()`: takes every byte that is left; returns the file that has them."""

    def take() -> Path:
        path = small_disk / "filler"
        with path.open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue
        return path

    return take


def test_a_disk_that_is_truly_full(machines: ChaosFleet, undisturbed: dict[str, str], small_disk: Path, fill: Callable[[], Path]) -> None:
    """The session ends with one message and no half file; the same command goes on when there is room."""
    machines.out = small_disk / "out"
    coordinator = machines.start_coordinator()
    with judged(machines, undisturbed):
        filler = fill()
        assert coordinator.wait(60) == 1, machines.logs()
        assert "No space left on device" in machines.logs()
        kept = files_of(machines.out)
        assert kept.items() <= undisturbed.items()
        assert len(kept) < PARTS
        filler.unlink()
        machines.start_coordinator()
