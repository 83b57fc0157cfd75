"""`WorkerMetrics`: a worker's numbers for Prometheus; `serve_metrics`: any collector at `/metrics` on loopback."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.errors import SpecmillError
from schemas.progress import Tally
from worker.worker_counts import OUTCOMES, WorkerCounts

ADDRESS = "127.0.0.1"


class WorkerMetrics(Collector):
    """Turns the counts of one worker process into metrics when it is asked; all begin at 0 with the process."""

    def __init__(self, worker: str, counts: WorkerCounts, engine_starts: Callable[[], int], busy: Callable[[], bool]) -> None:
        """Args.

        Args:
            worker: its name, the label of every metric.
            counts: what it has done.
            engine_starts: how often its engine process was started.
            busy: whether a shard is in work.
        """
        self._worker = worker
        self._counts = counts
        self._engine_starts = engine_starts
        self._busy = busy

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        counts, tally = self._counts, self._counts.tally
        yield from tally_metrics("specmill_worker_", {"worker": self._worker}, tally)
        rows = {"ok": tally.rows - tally.failed, "failed": tally.failed}
        yield self._counter("rows", "Rows generated, by state.", rows, "state")
        outcomes = {outcome: counts.outcomes[outcome] for outcome in OUTCOMES}
        yield self._counter("messages", "Messages, by what became of them.", outcomes, "outcome")
        yield self._counter("retries", "Attempts at shards that were tried before.", {"": counts.retries})
        yield self._counter("lease_losses", "Shards given up because another worker holds them.", {"": counts.outcomes["lost"]})
        restarts = max(0, self._engine_starts() - 1)
        yield self._counter("engine_restarts", "Starts of the engine process after the first.", {"": restarts})
        busy = GaugeMetricFamily("specmill_worker_busy", "1 while a shard is in work.", labels=["worker"])
        busy.add_metric([self._worker], float(self._busy()))
        yield busy

    def _counter(self, name: str, text: str, values: Mapping[str, float], label: str | None = None) -> Metric:
        return counter(f"specmill_worker_{name}", text, {"worker": self._worker}, values, label)


def tally_metrics(prefix: str, labels: dict[str, str], tally: Tally) -> Iterator[Metric]:
    """Tokens, cycles and drafts of a tally as counters."""
    kinds = {"completion": tally.completion_tokens, "prompt": tally.prompt_tokens}
    yield counter(f"{prefix}tokens", "Tokens, by what they are.", labels, kinds, "kind")
    yield counter(f"{prefix}cycles", "Draft-verify-commit cycles.", labels, {"": tally.cycles})
    for name, depths in (("drafted", tally.drafted_by_depth), ("accepted", tally.accepted_by_depth)):
        by_depth = {str(depth): count for depth, count in enumerate(depths, 1)}
        yield counter(f"{prefix}{name}", f"Drafts {name}, by depth.", labels, by_depth, "depth")
    expected = {"": tally.expected_accepted}
    yield counter(f"{prefix}expected_accepted", "Sum of the judged drafts' acceptance probabilities.", labels, expected)


def counter(name: str, text: str, labels: dict[str, str], values: Mapping[str, float], label: str | None = None) -> Metric:
    """One counter; each value goes under its key as `label`, or alone without one."""
    family = CounterMetricFamily(name, text, labels=[*labels, *([label] if label else [])])
    for key, value in values.items():
        family.add_metric([*labels.values(), *([key] if label else [])], value)
    return family


@contextlib.contextmanager
def serve_metrics(metrics: Collector, port: int) -> Iterator[None]:
    """Answer at `http://127.0.0.1:port/metrics` until the block ends.

    Raises:
        SpecmillError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, addr=ADDRESS, registry=registry)
    except OSError as error:
        raise SpecmillError(f"cannot serve metrics on {ADDRESS}:{port}: {error.strerror}; --metrics-port takes another one") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
