"""The long form of the chaos suite: random faults at random moments of whole runs, with the product's own leases and patience.

    python bench/chaos.py --seed 1 --rounds 5 --faults 4

Each round is one run of the scripted engine on two supervised workers behind networks that break. Prints what was injected and the
figures of the promise: rows lost, doubled and changed, seconds until a shard whose holder died was in work again, and duplicate work.
Exit code 1 when a dataset is not that of the undisturbed run.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as pds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from chaos_fleet import MARK, ChaosFleet, files_of, poll, processes
from flaky_network import FlakyNetwork

from worker.app import make_app
from worker.feeder import Feeder

LANDED = re.compile(r"shard (\d+) of run (\w+) landed")


class Rounds:
    """The faults of all rounds and what came of them."""

    def __init__(self, fleet: ChaosFleet, draw: random.Random) -> None:
        self.fleet = fleet
        self.draw = draw
        self.injected: Counter[str] = Counter()
        self.bag: list[str] = []
        self.recoveries: dict[str, list[float]] = {"engine killed": [], "machine vanished": []}

    def inject(self) -> None:
        faults: dict[str, Callable[[], None]] = {
            "engine killed": lambda: self._measured("engine killed", lambda worker: children(worker)),
            "worker killed": lambda: kill(self.draw.choice(self.fleet.pids("worker"))),
            "machine vanished": self._vanish,
            "coordinator killed": self._kill_coordinator,
            "server killed": lambda: kill(self.fleet.pids("server")[0]),
            "server came back empty": self.fleet.wipe,
            "connections of a worker reset": lambda: self.draw.choice(self.fleet.networks[-2:]).reset(),
            "connections of the coordinator reset": lambda: self.fleet.coordinator_network.reset(),
            "network of a worker swallows": lambda: self._swallow(self.draw.choice(self.fleet.networks[-2:])),
            "network of the coordinator swallows": lambda: self._swallow(self.fleet.coordinator_network),
            "message twice": self._repeat,
            "worker stopped": self._stop,
        }
        if not self.bag:  # every kind once, in a new order, before any comes again
            self.bag = self.draw.sample(sorted(faults), len(faults))
        name = self.bag.pop()
        print(f"  {self.fleet.landed():4d} parts: {name}", flush=True)
        faults[name]()
        self.injected[name] += 1

    def _measured(self, name: str, victims: Callable[[int], list[int]]) -> None:
        """Kill what holds a shard and wait until somebody else, or a new engine, has it."""
        held = poll(lambda: self.fleet.leases() or not self.fleet.running)
        if held is True:
            return
        shard, holder = self.draw.choice(sorted(held.items()))
        key = next(iter(self.fleet.client.scan_iter(f"run:*:lease:{shard}", count=1000)), None)
        before = self.fleet.client.get(key) if key else None
        found = victims(int(holder.rpartition(":")[2]))
        if not found or before is None:
            return
        started = time.monotonic()
        for pid in found:
            kill(pid)

        def again() -> bool:
            token = self.fleet.client.get(key)
            return (token is not None and token != before) or list(self.fleet.out.glob(f"data/part-{shard:05d}.parquet")) != []

        poll(again, 120, "a new holder")
        self.recoveries[name].append(time.monotonic() - started)

    def _vanish(self) -> None:
        self._measured("machine vanished", lambda worker: [parent(worker), worker, *children(worker)])
        poll(lambda: len(self.fleet.pids("supervisor")) < 2)
        self.fleet.start_worker()

    def _kill_coordinator(self) -> None:
        assert self.fleet.coordinator is not None
        self.fleet.coordinator.kill()
        self.fleet.coordinator.wait()
        self.fleet.start_coordinator()

    def _repeat(self) -> None:
        """Every shard of the run once more, whether it is done, in work or not begun."""
        run_id = json.loads((self.fleet.out / "manifest.json").read_text())["spec"]["run_id"]
        app = make_app(self.fleet.broker_url)
        feeder = Feeder(app, run_id)
        for shard in range(self.fleet.shape[0] // self.fleet.shape[1]):
            feeder.send(shard)
        app.close()

    def _swallow(self, network: FlakyNetwork) -> None:
        network.blackhole()
        wait(self.draw.uniform(5, 40))
        network.heal()

    def _stop(self) -> None:
        pid = self.draw.choice(self.fleet.pids("worker"))
        os.kill(pid, signal.SIGSTOP)
        wait(self.draw.uniform(5, 40))
        os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it had just ended
        os.kill(pid, signal.SIGKILL)


def wait(seconds: float) -> None:
    time.sleep(seconds)


def children(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, its_parent in map(str.split, listing.splitlines()) if int(its_parent) == pid]


def parent(pid: int) -> int:
    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout)


def rows_of(out: Path) -> dict[tuple[str, int], list[str]]:
    """(record, sample) → every row with that key."""
    found: dict[tuple[str, int], list[str]] = {}
    for row in pds.dataset(str(out / "data"), format="parquet").to_table().to_pylist():
        found.setdefault((row["record_id"], row["sample"]), []).append(repr(row))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", type=int, default=4, help="per round")
    parser.add_argument("--records", type=int, default=160)
    arguments = parser.parse_args()
    shape = (arguments.records, 4, 2, "scripted:seconds=0.1")
    mark = os.environ[MARK] = uuid.uuid4().hex
    lost = doubled = changed = rows = 0
    complaints: list[str] = []
    with tempfile.TemporaryDirectory(prefix="specmill-chaos-") as folder, ChaosFleet(Path(folder), mark, shape, {}) as fleet:
        fleet.start_worker()
        fleet.start_worker()
        fleet.next_run()
        fleet.finish()
        files, expected = files_of(fleet.out), rows_of(fleet.out)
        rounds = Rounds(fleet, random.Random(arguments.seed))
        for number in range(arguments.rounds):
            print(f"round {number + 1}", flush=True)
            fleet.next_run()
            for _ in range(arguments.faults):
                goal = fleet.landed() + rounds.draw.randrange(1, shape[0] // shape[1] // (arguments.faults + 1))
                poll(lambda goal=goal: fleet.landed() >= goal or not fleet.running, 300, f"{goal} parts")
                if not fleet.running:
                    break
                rounds.inject()
            fleet.finish()
            poll(lambda: len(fleet.pids("worker")) == 2 and len(fleet.pids("engine")) <= 2, what="two workers")
            complaints += fleet.complaints(files)
            found = rows_of(fleet.out)
            rows += len(expected)
            lost += len(expected.keys() - found.keys())
            doubled += sum(len(same) - 1 for same in found.values())
            changed += sum(found[key] != expected[key] for key in expected.keys() & found.keys())
        landings = [(match[2], match[1]) for match in LANDED.finditer(fleet.logs())]
        duplicates = len(landings) - len(set(landings))
    poll(lambda: not processes(mark), 30, "the end of every process")
    print(f"faults injected   {rounds.injected.total()}: " + ", ".join(f"{name} {count}" for name, count in rounds.injected.most_common()))
    print(f"rows              {rows}: {lost} lost, {doubled} doubled, {changed} changed")
    print(f"duplicate work    {duplicates} of {len(landings)} shards, {100 * duplicates / max(1, len(landings)):.1f} %")
    for name, seconds in rounds.recoveries.items():
        if seconds:
            print(f"{name:17s} in work again after {min(seconds):.1f} to {max(seconds):.1f} s ({len(seconds)} times)")
    for complaint in complaints:
        print(f"WRONG: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
