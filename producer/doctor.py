"""`examine`: the checkup of this machine: the engine's part in a process of its own, then broker, disk and clock."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import redis

from producer.broker import EmbeddedBroker
from producer.manifest_file import versions
from schemas.certificate import Certificate, Check
from schemas.errors import BrokerError, EngineError, SpecmillError
from schemas.profile import Backend
from worker.redis_client import make_client, masked

CHECKUP_SECONDS = 300.0
FREE_BYTES = 1 << 30
CLOCK_SKEW_SECONDS = 5.0
_PROGRAM = "from worker.engine import blas; blas.prepare(); from worker.engine.checkup import main; main()"

OnCheck = Callable[[Check], None]


def examine(folder: Path, broker_url: str | None, on_check: OnCheck = lambda _: None) -> Certificate:
    """Run every check.

    Args:
        folder: where datasets will be written: its disk is tested.
        broker_url: a broker to reach besides the embedded one, or None.
        on_check: receives each check as it ends.

    Raises:
        EngineError: the engine did not even say what machine this is.
    """
    backend, checks = _engine_part(on_check)
    for check in host_checks(folder, broker_url):
        checks.append(check)
        on_check(check)
    return Certificate(backend=backend, versions=versions(), checks=tuple(checks))


def certificate_text(certificate: Certificate) -> str:
    """The checkup as a table for people."""
    backend = certificate.backend
    where = ", ".join(filter(None, (backend.chip, backend.device, f"mlx {backend.mlx}", backend.blas)))
    lines = [f"{where}: {'certified' if certificate.passed else 'NOT certified'}"]
    for check in certificate.checks:
        lines.append(f"  {'pass' if check.passed else 'FAIL'}  {check.name:<15} {check.detail} ({check.seconds:.1f} s)")
        lines += [f"        what it means: {check.meaning}"] if not check.passed else []
    return "\n".join([*lines, f"  backend class {backend.class_name}", f"  certificate sha256:{certificate.digest}"])


def _engine_part(on_check: OnCheck) -> tuple[Backend, list[Check]]:
    process = subprocess.Popen([sys.executable, "-P", "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    backend: Backend | None = None
    checks: list[Check] = []
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("{"):
            continue  # a library that prints
        if backend is None:
            backend = Backend.decode(json.loads(line))
            continue
        checks.append(Check.decode(json.loads(line)))
        on_check(checks[-1])
    _, errors = process.communicate(timeout=CHECKUP_SECONDS)
    if backend is None:
        raise EngineError(f"the engine does not start here (exit code {process.returncode}): {errors.strip()[-2000:]}")
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or [""]
        crash = Check(
            "engine", False, f"ended with exit code {process.returncode}: {last[0]}", "the engine crashes here: no run will finish"
        )
        checks.append(crash)
        on_check(crash)
    return backend, checks


def host_checks(folder: Path, broker_url: str | None) -> Iterator[Check]:
    """Broker, disk and clock, one after the other; arguments as in `examine`."""
    yield _run("embedded broker", _embedded_broker, "runs need --broker URL: the embedded one does not work here")
    if broker_url is not None:
        yield _run("broker", lambda: _given_broker(broker_url), "workers and runs cannot meet there")
    yield _run("disk", lambda: _disk(folder), "part files cannot be landed there")
    yield _run("clock", _clock, "leases, logs and waiting times are wrong; rows are not")


def _run(name: str, work: Callable[[], str], meaning: str) -> Check:
    started = time.perf_counter()
    try:
        passed, detail = True, work()
    except (SpecmillError, OSError, redis.RedisError) as error:
        passed, detail = False, f"{type(error).__name__}: {error}"
    return replace(Check(name, passed, detail, meaning), seconds=time.perf_counter() - started)


def _embedded_broker() -> str:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker, make_client(broker.url) as client:
        client.set("specmill-doctor", "1", px=10_000)
        if client.get("specmill-doctor") is None:
            raise BrokerError("a key that was set is not there")
        return f"Valkey {client.info('server')['redis_version']} started, written and read"


def _given_broker(url: str) -> str:
    with make_client(url) as client:
        started = time.perf_counter()
        seconds, micros = client.time()
        took = time.perf_counter() - started
        skew = seconds + micros / 1e6 - time.time()
        if abs(skew) > CLOCK_SKEW_SECONDS:
            raise BrokerError(f"{masked(url)}: its clock is {skew:+.1f} s off ours")
        return f"{masked(url)} answers in {took * 1e3:.1f} ms, clock {skew:+.2f} s"


def _disk(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    with tempfile.TemporaryDirectory(dir=folder, prefix=".specmill-doctor-") as place:
        path = Path(place) / "data"
        started = time.perf_counter()
        with path.open("xb") as file:
            file.write(bytes(8 << 20))
            file.flush()
            os.fsync(file.fileno())
        path.rename(Path(place) / "renamed")
        took = time.perf_counter() - started
    if free < FREE_BYTES:
        raise OSError(f"{folder} has {free / 1e9:.1f} GB free; less than 1 GB fills up soon")
    return f"{free / 1e9:,.0f} GB free, 8 MiB written, synced and renamed in {took * 1e3:.0f} ms"


def _clock() -> str:
    wall, steady = time.time(), time.monotonic()
    while time.monotonic() - steady < 0.2:
        pass
    drift = (time.time() - wall) - (time.monotonic() - steady)
    if abs(drift) > 0.05:
        raise OSError(f"the wall clock jumped by {drift:+.3f} s in 0.2 s")
    if time.gmtime(wall).tm_year < 2025:
        raise OSError(f"the year is {time.gmtime(wall).tm_year}")
    return f"steady, {time.strftime('%Y-%m-%d', time.gmtime(wall))}"
