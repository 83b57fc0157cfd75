"""`RunMetrics`: a run's numbers for Prometheus, at `/metrics` on loopback while the session lasts."""

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from producer.run_progress import RunProgress
from schemas.errors import SpecmillError

ADDRESS = "127.0.0.1"


class RunMetrics(Collector):
    """Turns the last `RunProgress` into metrics when it is asked; counters are those of this session."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._progress: RunProgress | None = None

    def update(self, progress: RunProgress) -> None:
        """Take in where the run is."""
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """The metrics; none before the run has begun."""
        progress = self._progress
        if progress is None:
            return
        tally = progress.tally
        gauges = {
            "rows": ("Rows by state.", {"ok": progress.rows_ok, "failed": progress.rows_failed, "total": progress.rows_total}),
            "shards": ("Shards by state.", {"landed": progress.shards_done, "issued": progress.in_flight, "total": progress.shards_total}),
        }
        for name, (text, values) in gauges.items():
            family = GaugeMetricFamily(f"specmill_{name}", text, labels=["run", "state"])
            for state, value in values.items():
                family.add_metric([self._run, state], value)
            yield family
        yield self._gauge("workers", "Workers that were heard of lately.", len(progress.workers))
        yield self._gauge("tokens_per_second", "Completion tokens per second of the session.", progress.tokens_per_second)
        if progress.eta_seconds is not None:
            yield self._gauge("eta_seconds", "Estimated seconds to the end.", progress.eta_seconds)
        tokens = CounterMetricFamily("specmill_tokens", "Tokens, by what they are.", labels=["run", "kind"])
        tokens.add_metric([self._run, "completion"], tally.completion_tokens)
        tokens.add_metric([self._run, "prompt"], tally.prompt_tokens)
        yield tokens
        cycles = CounterMetricFamily("specmill_cycles", "Draft-verify-commit cycles.", labels=["run"])
        cycles.add_metric([self._run], tally.cycles)
        yield cycles
        for name, counts in (("drafted", tally.drafted_by_depth), ("accepted", tally.accepted_by_depth)):
            drafts = CounterMetricFamily(f"specmill_{name}", f"Drafts {name}, by depth.", labels=["run", "depth"])
            for depth, count in enumerate(counts, 1):
                drafts.add_metric([self._run, str(depth)], count)
            yield drafts
        expected = CounterMetricFamily("specmill_expected_accepted", "Sum of the judged drafts' acceptance probabilities.", labels=["run"])
        expected.add_metric([self._run], tally.expected_accepted)
        yield expected

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"specmill_{name}", text, labels=["run"])
        family.add_metric([self._run], value)
        return family


@contextlib.contextmanager
def serve_metrics(metrics: RunMetrics, port: int) -> Iterator[None]:
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
