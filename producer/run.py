"""`run`: a run from options to a finished dataset: plan, broker, workers, coordinator, card, summary."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace

import redis

from producer.broker import EmbeddedBroker
from producer.certificate_file import certified_versions
from producer.coordinator import Coordinator
from producer.counted import counted
from producer.dataset_card import dataset_card, write_card
from producer.depth_choice import choose_depth
from producer.landed_parts import find_landed
from producer.local_workers import LocalWorkers, WorkerSettings
from producer.manifest_file import write_manifest
from producer.metrics import RunMetrics
from producer.progress_display import Display, log_to
from producer.run_lock import RunLock
from producer.run_options import RunOptions
from producer.run_plan import RunPlan, make_plan
from producer.run_progress import RunProgress
from producer.run_summary import RunSummary
from producer.shards import ShardSource
from producer.stop_signal import StopSignal
from schemas.errors import SpecmillError
from schemas.manifest import Manifest
from worker.calibration import CalibrationWatch
from worker.engine import blas
from worker.engine.scripted import is_scripted
from worker.metrics import serve_metrics
from worker.part_names import CARD
from worker.redis_client import make_client, unusable
from worker.remote_path import Place


def run(options: RunOptions, display: Display) -> RunSummary | None:
    """Make the dataset, or finish it, or find it complete; call it from the main thread.

    Returns:
        What the dataset holds, or None when Ctrl-C or a cancellation ended the session first.

    Raises:
        SpecmillError: of any kind; what has landed stays, and the same options go on with it.
    """
    plan = make_plan(options, display.note)
    if plan.manifest is not None and plan.complete(options.out):
        display.note(f"{options.out} is complete: nothing to do")
        return _finish(options, plan, plan.manifest, keep_card=True)
    if plan.manifest is not None:
        there = len(find_landed(options.out, plan.manifest).records)
        display.note(f"going on with the run in {options.out}: {there:,} of {counted(plan.spec.shards, 'shard')} already there")
    return _session(options, plan, display)


def _session(options: RunOptions, plan: RunPlan, display: Display) -> RunSummary | None:
    """Generate what is missing."""
    last: RunProgress | None = None
    metrics = RunMetrics(plan.spec.run_id)

    def show(progress: RunProgress) -> None:
        nonlocal last
        last = progress
        metrics.update(progress)
        display.update(progress)

    def say_stopping() -> None:
        display.note("stopping; what has landed is kept. Ctrl-C once more leaves at once.")

    if options.broker is None:
        plan.backend_rule().check_here(plan.spec)
    if options.workers and not is_scripted(options.model):
        _warn_of_slow_blas()
    with contextlib.ExitStack() as stack:
        stack.enter_context(log_to(display))
        stop = stack.enter_context(StopSignal(say_stopping, display.close))
        lock = stack.enter_context(RunLock(options.out))
        if options.metrics_port is not None:
            stack.enter_context(serve_metrics(metrics, options.metrics_port))
        broker_url = options.broker or stack.enter_context(EmbeddedBroker(lock.folder / "broker")).url
        _check_broker(broker_url)
        source = ShardSource(plan.source)
        if options.auto_depth and plan.manifest is None:
            plan = _with_measured_depth(options, plan, source, display.note)
        settings = WorkerSettings(
            stall_seconds=options.stall_timeout,
            roots=(options.out,) if options.lands_directly else (),
            trust_remote_code=options.trust_remote_code,
        )
        local = LocalWorkers(options.workers, broker_url, lock.folder, settings)
        workers = stack.enter_context(local) if options.workers else None
        watch = None if options.ignore_calibration else CalibrationWatch()
        coordinator = Coordinator(
            plan.spec,
            options.out,
            broker_url,
            source,
            show,
            workers=workers,
            max_error_rate=options.max_error_rate,
            shared=options.lands_directly,
            calibration=watch,
            priority=options.priority,
        )
        try:
            manifest = coordinator.run(stop)
        except redis.RedisError as error:
            raise unusable(broker_url, error) from error
        display.close()
        if manifest.status != "complete":
            counts = coordinator.counts()
            # Said with --quiet too: it stands in the closing summary's place.
            print(_stopped(counts.ok + counts.failed, counts.total, plan.spec.shard_size, options.out), file=sys.stderr, flush=True)
            return None
        summary = _finish(options, plan, manifest)
    if last is not None and last.tokens_per_second:
        summary.seconds, summary.tokens_per_second = last.elapsed, last.tokens_per_second
    return summary


def _stopped(landed: int, total: int, shard_size: int, out: Place) -> str:
    """What a stopped session has kept, and how it goes on."""
    whole = f"whole shards of {shard_size:,} prompts are kept, --shard-size makes them smaller"
    if not landed:
        return f"stopped: nothing of {total:,} rows has landed yet ({whole}); the same command begins again"
    return f"stopped: {landed:,} of {total:,} rows are in {out} ({whole}); the same command goes on with the rest"


def _finish(options: RunOptions, plan: RunPlan, manifest: Manifest, *, keep_card: bool = False) -> RunSummary:
    """Count the dataset and describe it."""
    summary = RunSummary.of_dataset(options.out, manifest)
    summary.warnings += plan.source.warnings
    if not (keep_card and (options.out / CARD).exists()):
        write_card(options.out / CARD, dataset_card(manifest, summary, options.command(manifest.spec)))
    return summary


def _warn_of_slow_blas() -> None:
    """Let the user see at once what our workers would only write into their logs: that the model will run on a slow BLAS.

    Raises:
        SpecmillError: SPECMILL_BLAS has a value that no worker would take.
    """
    try:
        blas.prepare()
    except ValueError as error:
        raise SpecmillError(str(error)) from error


def _with_measured_depth(options: RunOptions, plan: RunPlan, source: ShardSource, note: Callable[[str], None]) -> RunPlan:
    """The plan with the fastest depth, frozen in the manifest together with what was measured."""
    spec, trials = choose_depth(
        plan.spec, source.blob(0), note, slots_given="slots" in options.given, trust_remote_code=options.trust_remote_code
    )
    write_manifest(options.out, Manifest(spec=spec, status="running", versions=certified_versions(), shards=(), depth_trials=tuple(trials)))
    return replace(plan, spec=spec)


def _check_broker(broker_url: str) -> None:
    """Find out at once whether the broker is there and lets us in; later, one that is away is waited for.

    Raises:
        BrokerError: it is not, or does not.
    """
    with make_client(broker_url) as client:
        try:
            client.ping()
        except (redis.RedisError, OSError) as error:
            raise unusable(broker_url, error) from error
