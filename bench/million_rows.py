"""A file of a million prompts: reading, feeding, the first tokens, memory while it runs, a kill and the way back.

Run: python bench/million_rows.py [--rows 1000000 --landed 15000 --seconds 60]

The engine is scripted and needs no time, so that everything else shows. Before the way back is measured, `--landed` part files are made
as a run makes them, without a queue, because their number is what a resume has to read.
"""

import contextlib
import json
import random
import signal
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import redis
from measurement import Measure, Result, arguments, processor_seconds, specmill
from scripted_run import MadeUpPrompts

from producer.broker import EmbeddedBroker
from producer.manifest_file import read_manifest
from producer.record import RecordReader
from producer.run_folder import FinishedShard, RunFolder
from producer.run_lock import RunLock
from producer.run_reference import RunReference
from producer.shards import ShardSource
from producer.source import PromptSource
from schemas.progress import AttemptReport
from schemas.tables import table_from_bytes
from worker.app import make_app
from worker.engine.completion import completions_to_table, requests_from_blob
from worker.engine.engine import Timings
from worker.engine.scripted import ScriptedEngine
from worker.feeder import Feeder
from worker.ledger import Ledger
from worker.redis_client import make_client

SHARD = 64
MODEL = "scripted"
TOKENS = 32


def write_prompts(path: Path, rows: int) -> None:
    """Prompts of 5 to 30 words, an id, two columns of the user's own; about 200 bytes a line."""
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            words = " ".join(str(draw.randrange(10**6)) for _ in range(draw.randrange(5, 30)))
            line = {"id": f"r{row}", "prompt": f"Write about {words}", "topic": draw.choice("abc"), "score": draw.random()}
            file.write(json.dumps(line) + "\n")


def command(prompts: Path, out: Path) -> list[str]:
    return specmill("run", prompts, "--out", out, "--model", MODEL, "--max-tokens", TOKENS, "--shard-size", SHARD, "--quiet")


def parts(out: Path) -> int:
    return len(list((out / "data").glob("*.parquet")))


@contextlib.contextmanager
def session(prompts: Path, out: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`specmill run`, killed at the end."""
    with log.open("ab") as file:
        process = subprocess.Popen(command(prompts, out), stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def seconds_until(process: "subprocess.Popen[bytes]", out: Path, count: int, started: float, log: Path) -> float:
    """Seconds until more than `count` parts are there."""
    while parts(out) <= count:
        if process.poll() is not None:
            raise SystemExit(f"specmill run ended with {process.returncode}:\n{log.read_text()}")
        time.sleep(0.02)
    return time.perf_counter() - started


def megabytes(pid: int) -> float:
    """Memory of a process that is in use now, megabytes."""
    listing = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(listing.stdout) / 1000


def make_parts(out: Path, count: int) -> None:
    """Land the first shards that are missing, as a coordinator does, without a queue."""
    manifest = read_manifest(out)
    assert manifest is not None
    spec = manifest.spec
    engine, shards, folder = ScriptedEngine(MODEL), MadeUpPrompts(spec), RunFolder(out, spec)
    with RunLock(out):
        folder.open()
        missing = [shard for shard in range(count) if shard not in folder.records]
        for first in range(0, len(missing), 8):
            found = []
            for shard in missing[first : first + 8]:
                blob = table_from_bytes(shards.blob(shard))
                completions = engine.complete(spec, requests_from_blob(blob, spec), Timings(), lambda _: None)
                table = completions_to_table(blob, completions, logprobs=False)
                tally = sum((one.tally() for one in completions[1:]), completions[0].tally())
                report = AttemptReport(spec.run_id, shard, 1, "bench", engine.backend, time.time(), 0.1, 0, 0, 0, 0, 0, 0, tally)
                found.append(FinishedShard(shard, table, report))
            folder.land(found)
        folder.close()
        folder.write_manifest("running")


def reading(prompts: Path, result: Result, rows: int) -> PromptSource:
    found: list[PromptSource] = []
    started = time.perf_counter()
    busy = processor_seconds(lambda: found.append(PromptSource.scan(prompts, RecordReader(), shard_size=SHARD)))
    seconds = time.perf_counter() - started
    result.add(Measure(f"reading and checking {rows:,} prompts", "rows/s", (rows / seconds,)))
    result.add(Measure("the same, processor time of all cores", "µs/row", (1e6 * busy / rows,)))
    return found[0]


def feeding(source: PromptSource, folder: Path, shards: int, result: Result) -> None:
    """Blobs into the ledger and messages onto the queue, as fast as one coordinator can."""
    source_shards, rates, busy = ShardSource(source), [], []
    with EmbeddedBroker(folder / "feed") as broker, make_client(broker.url) as client:
        app = make_app(broker.url)
        for _ in range(3):
            run_id = uuid.uuid4().hex
            ledger, feeder = Ledger(client, run_id), Feeder(app, run_id)
            started, begun = time.perf_counter(), time.process_time()
            for shard in range(shards):
                ledger.issue(shard, source_shards.blob(shard))
                feeder.send(shard)
            rates.append(shards * SHARD / (time.perf_counter() - started))
            busy.append(1e6 * (time.process_time() - begun) / (shards * SHARD))
        app.close()
    result.add(Measure(f"feeding, {shards} shards of {SHARD}", "rows/s", tuple(rates), goal="≥ 20,000 rows/s"))
    result.add(Measure("the same, processor time", "µs/row", tuple(busy), goal="≤ 50 µs"))


def running(prompts: Path, out: Path, log: Path, seconds: float, result: Result) -> None:
    """From the command to the first rows, then memory and `specmill status` while it runs; ends with a kill."""
    started = time.perf_counter()
    with session(prompts, out, log) as process:
        first = seconds_until(process, out, 0, started, log)
        result.add(Measure("from the command to the first part file", "s", (first,), goal="< 5 s to the first token"))
        with make_client(RunReference.find(str(out), None).broker_url) as client:
            memory, broker, status = [megabytes(process.pid)], [], []
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                asked = time.perf_counter()
                subprocess.run(specmill("status", out), stdout=subprocess.DEVNULL, check=True)
                status.append(time.perf_counter() - asked)
                memory.append(megabytes(process.pid))
                with contextlib.suppress(redis.ConnectionError):
                    broker.append(client.info("memory")["used_memory"] / 1e6)
                time.sleep(seconds / 20)
        landed = parts(out)
    result.add(Measure(f"memory of the coordinator, {landed:,} parts later", "MB", tuple(memory), goal="flat, < 300 MB"))
    result.add(Measure("memory of the broker", "MB", tuple(broker), goal="< 100 MB"))
    result.add(Measure("`specmill status`, a process each", "s", (statistics.median(status),), goal="< 0.5 s"))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--landed", type=int, help="part files that the resume finds")
    parser.add_argument("--seconds", type=float, help="for which the run is watched")
    parser.add_argument("--folder", type=Path, help="for everything; a temporary one when not given")
    args = parser.parse_args()
    rows = args.rows or (50_000 if args.short else 1_000_000)
    landed = args.landed if args.landed is not None else (200 if args.short else 15_000)
    result = Result(
        "million-rows",
        f"{rows:,} prompts in one file",
        f"Shards of {SHARD}, a scripted engine that needs no time, one worker, an embedded broker, everything on one machine. "
        "Reading includes every check of every line and is done before anything starts.",
    )
    with tempfile.TemporaryDirectory(prefix="specmill-bench-", dir=args.folder) as name:
        folder = Path(name)
        prompts, out, log = folder / "prompts.jsonl", folder / "out", folder / "log"
        write_prompts(prompts, rows)
        source = reading(prompts, result, rows)
        feeding(source, folder, min(300, source.shards), result)
        running(prompts, out, log, args.seconds or (5.0 if args.short else 60.0), result)
        make_parts(out, min(landed, source.shards - 2))
        before, started = parts(out), time.perf_counter()
        with session(prompts, out, log) as process:
            again = seconds_until(process, out, before, started, log)
        result.add(Measure(f"resume after a kill with {before:,} parts there, to the next part", "s", (again,), goal="< 20 s"))
    result.write(args.results)


if __name__ == "__main__":
    main()
