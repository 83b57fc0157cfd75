"""`ChaosFleet`: a broker, workers behind networks that break, and one run after the other, each a process that may be killed."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis
from flaky_network import FlakyNetwork

from producer.broker import EmbeddedBroker
from worker.redis_client import make_client

MARK = "SPECMILL_TEST_MARK"  # an environment variable that every process under a test inherits
PROCESS = Path(__file__).parent / "chaos_process.py"
KINDS = {"engine": "worker.engine.child", "worker": "worker.main", "supervisor": "producer.cli worker", "coordinator": "chaos_process.py"}
KINDS |= {"guard": "broker_guard.py", "server": "valkey-server"}
HASTY = {"patience": 1.0, "unacked": 3.0, "lease": 1.5, "interval": 0.5}  # seconds, so that a fault is over in a second or two


def poll(condition: Callable[[], Any], seconds: float = 60.0, what: str = "the condition") -> Any:
    """The first true value of `condition`, asked until then."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.01)
    return value


class ChaosFleet:
    """Runs of one `shape` (records, shard size, samples, model) that somebody disturbs. A context; at its end nothing runs any more."""

    def __init__(self, folder: Path, mark: str, shape: tuple[int, int, int, str], settings: dict[str, float]) -> None:
        """`mark` is in the environment of every process; `settings` are those of `chaos_process`, or nothing for the product's own."""
        self.out = folder / "out-0"
        self.shape = shape
        self.mark = mark
        self.settings = settings
        self._folder = folder
        self._broker = EmbeddedBroker(folder / "broker")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.networks: list[FlakyNetwork] = []
        self.coordinator_network: FlakyNetwork
        self.coordinator: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._broker.__enter__()
        self.client = make_client(self._broker.url)
        self.coordinator_network = FlakyNetwork(self._port).__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for network in (*self.networks, self.coordinator_network):
            network.__exit__()
        self.client.close()
        self._broker.__exit__()

    @property
    def broker_url(self) -> str:
        """The broker without a network in between."""
        return self._broker.url

    @property
    def _port(self) -> int:
        return int(self.broker_url.rpartition(":")[2].partition("/")[0])

    def _through(self, network: FlakyNetwork) -> str:
        return self.broker_url.replace(f":{self._port}/", f":{network.port}/")

    def start_worker(self, **settings: float) -> "subprocess.Popen[bytes]":
        """`specmill worker` behind a network of its own; with settings, a bare worker that has them."""
        network = FlakyNetwork(self._port).__enter__()
        self.networks.append(network)
        lease = self.settings.get("lease", 20.0)
        words = ["-m", "producer.cli", "worker", f"--lease-seconds={lease}", "--drain-timeout=2"]
        words = [str(PROCESS), "worker"] if settings else words
        return self._start(words, self._through(network), settings)

    def next_run(self) -> "subprocess.Popen[bytes]":
        """Begin a run in a new folder."""
        self.out = self._folder / f"out-{int(self.out.name.partition('-')[2]) + 1}"
        return self.start_coordinator()

    def start_coordinator(self, **settings: float) -> "subprocess.Popen[bytes]":
        """The run, or the rest of it, behind a network of its own."""
        words = [str(PROCESS), "coordinator", str(self.out), *map(str, self.shape)]
        self.coordinator = self._start(words, self._through(self.coordinator_network), settings)
        return self.coordinator

    def _start(self, words: list[str], broker_url: str, settings: dict[str, float]) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, MARK: self.mark, "SPECMILL_BROKER": broker_url, "CHAOS": json.dumps(self.settings | settings)}
        log = (self._folder / f"process-{len(self._processes)}.log").open("wb")
        with log:
            process = subprocess.Popen([sys.executable, *words], env=environment, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    @property
    def running(self) -> bool:
        """Whether the coordinator has not ended."""
        return self.coordinator is not None and self.coordinator.poll() is None

    def finish(self) -> None:
        """Wait for the coordinator; one that was killed is followed by the same command again."""
        assert self.coordinator is not None
        if self.coordinator.wait(120) == 0:
            return
        assert self.coordinator.returncode == -signal.SIGKILL, self.logs()
        assert self.start_coordinator().wait(120) == 0, self.logs()

    def logs(self) -> str:
        """What all processes wrote."""
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self._folder.glob("process-*.log")))

    def pids(self, kind: str) -> list[int]:
        """Living processes of a kind of `KINDS`, oldest first."""
        found = []
        for pid, command in processes(self.mark).items():
            text = command.split(" ")[0] if kind == "server" else command
            if KINDS[kind] in text and (kind == "guard" or "broker_guard" not in command):
                found.append(pid)
        return sorted(found)

    def landed(self) -> int:
        """Part files so far."""
        return len(list((self.out / "data").glob("part-*.parquet"))) if (self.out / "data").is_dir() else 0

    def leases(self) -> dict[int, str]:
        """Shard → who holds it."""
        found = {}
        try:
            for key in self.client.scan_iter("run:*:lease:*", count=1000):
                if (token := self.client.get(key)) is not None:
                    found[int(key.rpartition(b":")[2])] = bytes(token).decode().partition("/")[0]
        except redis.ConnectionError:
            return {}
        return found

    def wipe(self) -> None:
        """Restart the broker without anything that it knew."""
        (guard,) = self.pids("guard")
        os.kill(guard, signal.SIGSTOP)
        os.kill(self.pids("server")[0], signal.SIGKILL)
        for path in sorted((self._folder / "broker").rglob("appendonlydir/*")):
            path.unlink()
        os.kill(guard, signal.SIGCONT)

    def complaints(self, undisturbed: dict[str, str]) -> list[str]:
        """What is not as it should be after the end of the run."""
        found = []
        if (files := files_of(self.out)) != undisturbed:
            changed = sorted(name for name in files.keys() | undisturbed.keys() if files.get(name) != undisturbed.get(name))
            found.append(f"files differ: {changed}")
        if self.pids("coordinator"):
            found.append("a coordinator is left running")
        if len(engines := self.pids("engine")) > len(self.pids("worker")):
            found.append(f"engines without a worker: {engines}")
        manifest = json.loads((self.out / "manifest.json").read_text())
        rows, expected = sum(shard["rows"] for shard in manifest["shards"]), self.shape[0] * self.shape[2]
        if manifest["status"] != "complete" or rows != expected:
            found.append(f"the ledger does not balance: {manifest['status']}, {rows} of {expected} rows")
        allowed = re.compile(r"manifest\.json|data/part-\d{5}\.parquet|log/attempts-\d{4}\.parquet")
        names = [str(path.relative_to(self.out)) for path in self.out.rglob("*") if not path.is_dir()]
        found += [f"left over: {name}" for name in names if not allowed.fullmatch(name)]
        if keys := list(self.client.scan_iter("run:*")):
            found.append(f"keys: {keys}")
        if forever := [key for key in self.client.scan_iter("fleet:*") if self.client.ttl(key) == -1]:
            found.append(f"keys for ever: {forever}")
        return found


def files_of(out: Path) -> dict[str, str]:
    """Name → sha256 of every file in `data/`, hidden ones too."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((out / "data").iterdir())}


def processes(mark: str) -> dict[int, str]:
    """Process id → command line of every living process that carries the mark."""
    found = {}
    if Path("/proc/self/environ").exists():
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if command:  # else it is dead and only not yet buried
                        found[int(folder.name)] = command
            except (OSError, ValueError):
                continue
        return found
    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    return {int(line.split()[0]): line.split(None, 1)[1] for line in listing.splitlines() if f"{MARK}={mark}" in line}
