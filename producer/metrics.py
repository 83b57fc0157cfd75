"""`RunMetrics`: a run's numbers for Prometheus, at `/metrics` on loopback while the session lasts."""

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from producer.run_progress import RunProgress
from worker.metrics import counter, tally_metrics

EVENTS = {
    "retries": "Shards handed out again.",
    "lease_losses": "Shards lost with their worker or their message.",
    "engine_restarts": "Engines that died and were started again.",
}


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
        labels = {"run": self._run}
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
        yield from tally_metrics("specmill_", labels, progress.tally)
        yield self._gauge("queue_depth", "Shards that wait for a worker.", progress.queued)
        events = asdict(progress.events)
        for name, text in EVENTS.items():
            yield counter(f"specmill_{name}", text, labels, {"": events[name]})

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"specmill_{name}", text, labels=["run"])
        family.add_metric([self._run], value)
        return family
