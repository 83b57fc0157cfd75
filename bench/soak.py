"""Thousands of short rows through the real engine: does its memory stay flat, and is anything left behind?

    python bench/soak.py [--records 2000] [--model smollm2-135m --mtp head.safetensors]

One `specmill run` on a broker of its own, with every temporary file in a folder of its own. While it goes on, the engine process is looked
at twice a second. Without --model a tiny random model is made: it is quick, and what is kept between rows shows. Prints the figures; exit
code 1 when memory grew by more than --slack after the first fifth of the parts, a file or a Redis key without an end is left, or a row is
missing.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as pds

from producer.broker import EmbeddedBroker
from worker.engine.tiny_model import make_tiny_head, make_tiny_llama
from worker.redis_client import make_client

WORDS = ("river", "stone", "small", "green", "house", "winter", "answer", "number", "yellow", "paper", "music", "friend", "morning")
WARM_UP = 0.2  # of the parts: by then every shape was seen once


@dataclass(frozen=True)
class Sample:
    """The engine at one moment: parts landed, resident megabytes, open files (0 where there is no /proc)."""

    parts: int
    resident: float
    files: int


def write_prompts(path: Path, count: int) -> None:
    """Prompts of many lengths; half of them begin alike."""
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            beginning = "Answer in one short line, without any ornament: " if number % 2 else ""
            words = " ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 25)))
            file.write(json.dumps({"id": f"r{number}", "prompt": f"{beginning}{words}?"}) + "\n")


def engine_pid(root: int) -> int | None:
    """The engine process below a process, once there is one."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): (int(its_parent), words) for pid, its_parent, words in (line.split(None, 2) for line in listing.splitlines())}
    for pid, (above, words) in parents.items():
        if "worker.engine.child" in words:
            while above in parents and above != root:
                above = parents[above][0]
            if above == root:
                return pid
    return None


def look(pid: int, parts: int) -> Sample | None:
    """None when the process has just ended."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    try:
        files = len(list(Path(f"/proc/{pid}/fd").iterdir())) if Path("/proc/self").exists() else 0
    except (FileNotFoundError, PermissionError):  # it ended between the two looks
        return None
    return Sample(parts, int(shown) / 1024, files) if shown.strip() else None


def watch(run: "subprocess.Popen[bytes]", out: Path) -> list[Sample]:
    """Look at the engine until the run ends."""
    samples: list[Sample] = []
    pid = None
    while run.poll() is None:
        pid = pid or engine_pid(run.pid)
        if pid is not None and (sample := look(pid, len(list(out.glob("data/part-*.parquet"))))) is not None:
            samples.append(sample)
        time.sleep(0.5)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--shard-size", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--mtp")
    parser.add_argument("--slack", type=float, default=5.0, help="megabytes of growth that are allowed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specmill-soak-") as name, EmbeddedBroker(Path(name) / "broker") as broker:
        folder = Path(name)
        out, prompts, temporary = folder / "out", folder / "prompts.jsonl", folder / "tmp"
        temporary.mkdir()
        write_prompts(prompts, arguments.records)
        model, head = arguments.model, arguments.mtp
        if model is None:
            model = str(make_tiny_llama(folder / "model", vocab_size=2000, hidden=64))
            head = str(make_tiny_head(folder / "head", folder / "model"))
        words = [
            "run",
            str(prompts),
            "--out",
            str(out),
            "--model",
            model,
            "--broker",
            broker.url,
            "--shard-size",
            str(arguments.shard_size),
        ]
        words += ["--max-tokens", str(arguments.max_tokens), "--temperature", "0.8", "--top-p", "0.95"]
        words += ["--mtp", head, "--depth", str(arguments.depth)] if head else []
        started = time.monotonic()
        with (folder / "log").open("wb") as log:
            run = subprocess.Popen(
                [sys.executable, "-m", "producer.cli", *words], stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(temporary)}
            )
            samples = watch(run, out)
        seconds = time.monotonic() - started
        if run.returncode != 0:
            print((folder / "log").read_text(encoding="utf-8", errors="replace"))
            return 1
        complaints = report(samples, out, arguments, seconds)
        client = make_client(broker.url)
        # The queue's own bindings and mlx's compiled kernels do not belong to a run; both are the same after any number of runs.
        endless = [key for key in client.scan_iter("*") if client.ttl(key) == -1 and not key.startswith(b"_kombu.binding")]
        left = [path for path in temporary.rglob("*") if path.is_file() and path.relative_to(temporary).parts[0] != "mlx"]
        print(f"left behind    {len(left)} temporary files, {len(endless)} Redis keys without an end, {client.dbsize()} keys in all")
        complaints += [f"file {path}" for path in left] + [f"key {key}" for key in endless]
    for complaint in complaints:
        print(f"WRONG: {complaint}")
    return 1 if complaints else 0


def report(samples: list[Sample], out: Path, arguments: argparse.Namespace, seconds: float) -> list[str]:
    """Print the figures of memory and rows; what is wrong with them."""
    rows = pds.dataset(str(out / "data"), format="parquet").to_table(columns=["record_id", "finish_reason", "completion_tokens"])
    failed = rows.column("finish_reason").to_pylist().count("error")
    tokens = sum(rows.column("completion_tokens").to_pylist())
    print(f"rows           {rows.num_rows} of {arguments.records}, {failed} failed, {tokens} tokens in {seconds:.0f} s")
    parts = -(-arguments.records // arguments.shard_size)
    peaks = pds.dataset(str(out / "log"), format="parquet").to_table(columns=["peak_bytes"]).column("peak_bytes").to_pylist()
    print(f"arrays' peak   {min(peaks) / 1e6:.1f} to {max(peaks) / 1e6:.1f} MB a shard")
    complaints = [] if rows.num_rows == arguments.records and not failed else ["rows are missing or failed"]
    warm = [sample for sample in samples if WARM_UP * parts <= sample.parts < parts]  # at the end the process is being taken down
    if len(warm) < 10:
        return [*complaints, f"the run was too short to judge: {len(warm)} looks after the warm-up"]
    for fifth in range(5):
        there = [sample for sample in samples if fifth <= 5 * sample.parts / parts < fifth + 1]
        if there:
            resident = statistics.median(sample.resident for sample in there)
            print(
                f"fifth {fifth + 1}        {resident:.1f} MB resident, {statistics.median(sample.files for sample in there):.0f} open files"
            )
    third = max(3, len(warm) // 4)
    growth = statistics.median(sample.resident for sample in warm[-third:]) - statistics.median(sample.resident for sample in warm[:third])
    opened = warm[-1].files - warm[0].files
    print(f"after warm-up  {growth:+.1f} MB, {opened:+d} open files over {warm[-1].parts - warm[0].parts} parts")
    complaints += [f"memory grew by {growth:.1f} MB"] if growth > arguments.slack else []
    return complaints + ([f"{opened} more files are open"] if opened > 0 else [])


if __name__ == "__main__":
    sys.exit(main())
