"""`Attempts`: the attempts log of a dataset, read back: which worker was at work when, and how fast."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from producer.attempts_log import attempts_table, read_journal
from producer.local_side import journal_folder
from schemas.errors import LandingError
from worker.part_names import LOG
from worker.remote_path import Place, listed, parquet_source

PHASES = ("load", "prefill", "draft", "verify", "commit", "other")
_GAP_SECONDS = 60.0  # idle for longer, the axis of time skips

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Attempts:
    """The log's attempts in the order of their start.

    Attributes:
        shard: int64 [attempts].
        worker: the workers' own names.
        chip: where each ran, chip and BLAS.
        start: seconds since the first start, float64 [attempts].
        seconds: wall time, float64 [attempts].
        tokens: completion tokens, float64 [attempts].
        rows: output rows, float64 [attempts].
        phases: phase of `PHASES` → seconds of each attempt, float64 [attempts].
        peak_bytes: the engine's peak memory, int64 [attempts].
    """

    shard: list[int]
    worker: list[str]
    chip: list[str]
    start: Floats
    seconds: Floats
    tokens: Floats
    rows: Floats
    phases: dict[str, Floats]
    peak_bytes: list[int]

    @classmethod
    def of_dataset(cls, out: Place) -> "Attempts":
        """Read `OUT/log`, the journal of a run that is still going on included.

        Raises:
            LandingError: a log file that cannot be read.
        """
        tables = [_read(path) for path in listed(out / LOG, "attempts-*.parquet")]
        tables += [attempts_table(read_journal(path)) for path in sorted(journal_folder(out).glob("attempts-*.jsonl"))]
        table = pa.concat_tables(tables, promote_options="default").sort_by("started") if tables else attempts_table([])
        started = table["started"].cast(pa.int64()).to_numpy() / 1000
        seconds = table["seconds"].to_numpy()
        phases = {name: table[f"{name}_seconds"].to_numpy() for name in PHASES[:-1]}
        phases["other"] = np.maximum(0.0, seconds - np.sum([*phases.values()], axis=0))
        return cls(
            shard=table["shard"].to_pylist(),
            worker=table["worker"].to_pylist(),
            chip=[", ".join(filter(None, pair)) for pair in zip(table["chip"].to_pylist(), table["blas"].to_pylist(), strict=True)],
            start=started - (started[0] if len(started) else 0.0),
            seconds=seconds,
            tokens=table["completion_tokens"].to_numpy().astype(np.float64),
            rows=table["rows"].to_numpy().astype(np.float64),
            phases=phases,
            peak_bytes=table["peak_bytes"].to_pylist(),
        )

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def rate(self) -> Floats:
        """Tokens per second of each attempt, model loading aside."""
        return self.tokens / np.maximum(self.seconds - self.phases["load"], 1e-9)

    def by_worker(self) -> dict[str, list[int]]:
        """Worker → its attempts, the busiest worker first."""
        found: dict[str, list[int]] = {}
        for number, name in enumerate(self.worker):
            found.setdefault(name, []).append(number)
        return dict(sorted(found.items(), key=lambda item: (-float(self.tokens[item[1]].sum()), item[0])))

    def busy_time(self) -> tuple[Floats, Floats, list[float]]:
        """Begin (loading aside) and end of every attempt in seconds at work, pauses cut out, and where the stretches between pauses end."""
        spans = self.spans()
        first = np.array([start for start, _ in spans])
        ends = np.cumsum([end - start for start, end in spans])
        span = np.searchsorted(first, self.start, side="right") - 1
        shift = np.concatenate([[0.0], ends[:-1]])[span] - first[span]
        return self.start + self.phases["load"] + shift, self.start + self.seconds + shift, ends.tolist()

    def rates(self, edges: Floats, chosen: list[int]) -> Floats:
        """Tokens per second of some attempts together, on average over each interval of busy time, float64 [edges - 1]."""
        begin, end, _ = self.busy_time()
        overlap = np.minimum(end[chosen, None], edges[None, 1:]) - np.maximum(begin[chosen, None], edges[None, :-1])
        total: Floats = (np.maximum(0.0, overlap) * self.rate[chosen, None]).sum(axis=0) / np.diff(edges)
        return total

    def spans(self) -> list[tuple[float, float]]:
        """Stretches of time in which somebody was at work, with no pause longer than a minute (or a twentieth of all) within."""
        ends = self.start + self.seconds
        gap = max(_GAP_SECONDS, float(self.seconds.sum()) / 20)
        spans: list[tuple[float, float]] = []
        for start, end in zip(self.start.tolist(), ends.tolist(), strict=True):
            if spans and start - spans[-1][1] <= gap:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            else:
                spans.append((start, end))
        return spans


def _read(path: Place) -> pa.Table:
    try:
        return pq.read_table(parquet_source(path))
    except (OSError, pa.ArrowInvalid) as error:
        raise LandingError(f"{path} cannot be read: {error}") from error
