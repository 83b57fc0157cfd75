"""`run_worker`: one worker process, from its first connection to its last.

Celery is started in code, so no user's folder can change what it runs. The pool is one thread that waits for the engine child, so the
process answers pings, Flower and signals while a shard runs.
"""

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time

from celery import Celery
from celery.worker import state as celery_state

from schemas.errors import BrokerError
from worker import BROKER_VARIABLE
from worker.app import TASK, make_app
from worker.engine.client import EngineProcess
from worker.feeder import Feeder
from worker.keeper import Keeper
from worker.metrics import WorkerMetrics, serve_metrics
from worker.patience import DRAIN_SECONDS, LEASE_SECONDS, STALL_SECONDS
from worker.patient_output import outliving_readers
from worker.quiet_hours import QuietHours
from worker.redis_client import masked, password_of
from worker.remote_path import Place, place_of
from worker.task import ShardTask

END_SECONDS = 5.0  # from giving up to a forced end
NO_ENGINE = 3  # exit code of a worker whose engine does not start
NO_QUIET_HOURS = QuietHours()
REST_SECONDS = 5.0  # between two looks at the clock in quiet hours
IDLE_SECONDS = 5.0  # with a message reserved and nothing in work, after which the consumer is taken for stuck
RESTART_SECONDS = 1.0  # between two lives of the Celery part

logger = logging.getLogger("specmill.worker")


def worker_name(pid: int | None = None) -> str:
    """`host:pid`, the name of a worker process in the ledger and in the attempts log."""
    return f"{socket.gethostname()}:{os.getpid() if pid is None else pid}"


def run_worker(
    broker_url: str,
    name: str | None = None,
    *,
    die_with_parent: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    stall_seconds: float = STALL_SECONDS,
    drain_seconds: float = DRAIN_SECONDS,
    models: tuple[str, ...] = (),
    roots: tuple[Place, ...] = (),
    quiet_hours: QuietHours = NO_QUIET_HOURS,
    metrics_port: int | None = None,
    trust_remote_code: bool = False,
    level: int = logging.INFO,
) -> int:
    """Serve shards until SIGTERM or SIGINT; call it from the main thread.

    The first signal lets the shard in work finish, if it does so in time; the second gives it up at once. Either way nothing is lost.

    Args:
        broker_url: where the queue and the ledger are. A broker that is away is waited for.
        name: the worker's own name, unique among the workers of a broker; `host:pid` when None.
        die_with_parent: also end when standard input ends.
        lease_seconds: time to live of a lease; the coordinator must use the same.
        stall_seconds: longest time without a new token before the engine is killed; 0 waits for ever.
        drain_seconds: how long the first signal lets a shard go on.
        models: names of the models that it may load; none means any. Shards of others are left to other workers.
        roots: folders and places in object stores below which it may land parts itself.
        quiet_hours: local times at which it takes no shard; what it has when they begin it finishes.
        metrics_port: serve metrics for Prometheus there, on loopback; None serves none.
        trust_remote_code: code that comes with a model may run.
        level: logging level.

    Returns:
        The process's exit code: 0 after an orderly end, `NO_ENGINE` when the engine does not start.

    Raises:
        BrokerError: not a broker address.
        SpecmillError: the metrics' port is taken.
    """
    set_up_logging(broker_url, level)
    ending = _Ending(drain_seconds)
    engine = EngineProcess(trust_remote_code=trust_remote_code)
    name = name or worker_name()
    app = make_app(broker_url)
    task = ShardTask(
        broker_url,
        name,
        engine,
        ending.hurried,
        give_up=ending.give_up,
        send_back=lambda message, priority: Feeder(app, message.run_id, priority).send(message.shard),
        models=models,
        roots=roots,
        lease_seconds=lease_seconds,
        stall_seconds=stall_seconds,
    )
    threading.Thread(target=_watch_consumer, args=(task, ending, quiet_hours), name="consumer-watch", daemon=True).start()
    keeper = Keeper(broker_url, app, task.card, lease_seconds=lease_seconds)
    threading.Thread(target=keeper.run, args=(ending.wait, ending.is_set), name="keeper", daemon=True).start()
    ending.watch(task, engine, keeper, parent=die_with_parent)
    _register(app, task)
    logger.info("worker %s takes shards from %s", name, masked(broker_url))
    metrics = WorkerMetrics(name, task.counts, lambda: engine.starts, lambda: task.busy)
    try:
        with serve_metrics(metrics, metrics_port) if metrics_port is not None else contextlib.nullcontext():
            _take_shards(app, task, ending, quiet_hours)
    finally:
        keeper.leave()
        task.close()
        engine.close()
        ending.done()
    return ending.code


def _take_shards(app: Celery, task: ShardTask, ending: "_Ending", quiet_hours: QuietHours) -> None:
    """One life of the Celery part after another, until the end is wished."""
    while not ending.is_set():
        task.resting = quiet_hours.include(time.localtime())
        if task.resting:
            ending.wait(REST_SECONDS)
            continue
        _serve(app)
        if not ending.is_set() and not quiet_hours.include(time.localtime()):
            # A payload that is no message kills Celery's consumer; the engine and its model stay.
            logger.warning("the consumer ended by itself; it starts again in %.0f s", RESTART_SECONDS)
            ending.wait(RESTART_SECONDS)


def _serve(app: Celery) -> None:
    """One life of the Celery part."""
    celery_state.reset_state()
    celery_state.should_stop = None
    worker = app.WorkController(
        hostname=f"specmill-{os.getpid()}@{socket.gethostname()}",
        pool="threads",
        concurrency=1,
        without_mingle=True,
        without_gossip=True,
        task_events=True,
        loglevel=logging.WARNING,
    )
    with contextlib.suppress(SystemExit):
        worker.start()


def _register(app: Celery, task: ShardTask) -> None:
    @app.task(name=TASK)  # type: ignore[untyped-decorator]
    def generate_shard(message: object) -> str:
        return task(message)


def _watch_consumer(task: ShardTask, ending: "_Ending", quiet_hours: QuietHours = NO_QUIET_HOURS) -> None:
    """Stop the consumer when quiet hours begin, and restart one that holds a message which never reaches the task.

    Celery's thread pool swallows what is raised on the way from the queue to the task.
    """
    idle_since, calls = time.monotonic(), 0
    while not ending.is_set():
        ending.wait(0.5)
        if quiet_hours.include(time.localtime()):
            celery_state.should_stop = 0
        if task.busy or task.calls != calls or not celery_state.reserved_requests:
            idle_since, calls = time.monotonic(), task.calls
        elif time.monotonic() - idle_since > IDLE_SECONDS:
            logger.error("a message was received and nothing works on it: the consumer is stuck and starts again")
            idle_since = time.monotonic()
            celery_state.should_stop = 0


class _Ending:
    """The wish to end, however it is expressed, and the promise that it is kept in time.

    Attributes:
        code: exit code of the process.
    """

    def __init__(self, drain_seconds: float) -> None:
        self.code = 0
        self._drain_seconds = drain_seconds
        self._wished = threading.Event()
        self._hurry = threading.Event()
        self._orphaned = False
        self._done = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._signalled())

    def is_set(self) -> bool:
        """Whether no further message is wanted."""
        return self._wished.is_set()

    def hurried(self) -> bool:
        """Whether the shard in work is to be given up."""
        return self._hurry.is_set()

    def give_up(self, why: str) -> None:
        """End because this worker is of no use."""
        logger.error("giving up: %s", why)
        self.code = NO_ENGINE
        self._hurry.set()
        self._wish()

    def wait(self, seconds: float) -> None:
        self._wished.wait(seconds)

    def done(self) -> None:
        self._done.set()

    def watch(self, task: ShardTask, engine: EngineProcess, keeper: Keeper, *, parent: bool) -> None:
        """Keep the promise; with `parent`, the end of standard input is a wish too."""
        threading.Thread(target=self._keep, args=(task, engine, keeper), name="ending", daemon=True).start()
        if parent:
            threading.Thread(target=self._follow_parent, name="parent", daemon=True).start()

    def _signalled(self) -> None:
        if self._wished.is_set():
            self._hurry.set()
        self._wish()

    def _wish(self) -> None:
        self._wished.set()
        celery_state.should_stop = 0

    def _follow_parent(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        self._orphaned = True
        self._hurry.set()
        self._wish()

    def _keep(self, task: ShardTask, engine: EngineProcess, keeper: Keeper) -> None:
        """Force the end when it takes too long, or when nobody waits for Celery's farewell: that takes a second."""
        self._wished.wait()
        drained = time.monotonic() + self._drain_seconds
        while task.busy and time.monotonic() < drained and not self._hurry.wait(0.05):
            celery_state.should_stop = 0
        self._hurry.set()
        deadline = time.monotonic() + END_SECONDS
        while not (self._orphaned and not task.busy) and time.monotonic() < deadline:
            # Celery forgets the wish when a connection breaks while it is being expressed.
            celery_state.should_stop = 0
            if self._done.wait(0.05):
                return
        if task.busy:
            logger.error("not ended after %.0f s: forced", END_SECONDS)
        if (pid := engine.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        keeper.leave()
        os._exit(self.code or int(task.busy))


class _MaskingFormatter(logging.Formatter):
    """Never shows the broker's password, not even in a traceback."""

    def __init__(self, broker_url: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._password = password_of(broker_url)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.replace(self._password, "***") if self._password else text


def set_up_logging(broker_url: str, level: int = logging.INFO) -> None:
    """Log to standard error, without the password of the broker."""
    handler = logging.StreamHandler()
    handler.setFormatter(_MaskingFormatter(broker_url))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("specmill", "worker"):
        logging.getLogger(name).setLevel(level)


def main() -> None:
    """Entry point of `python -m worker.main`, which local workers run; people use `specmill worker`."""
    parser = argparse.ArgumentParser(prog="worker.main")
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("--name")
    parser.add_argument("--lease-seconds", type=float, default=LEASE_SECONDS)
    parser.add_argument("--stall-timeout", type=float, default=STALL_SECONDS)
    parser.add_argument("--drain-seconds", type=float, default=DRAIN_SECONDS)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--quiet-hours", type=QuietHours.parse, default=NO_QUIET_HOURS)
    parser.add_argument("--metrics-port", type=int)
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--shared", action="append", type=place_of, default=[])
    arguments = parser.parse_args()
    broker_url = os.environ.pop(BROKER_VARIABLE, "")
    if not broker_url:
        raise BrokerError(f"the environment variable {BROKER_VARIABLE} must hold the broker's address; received ''")
    with outliving_readers():  # its log may be a pipe
        code = run_worker(
            broker_url,
            arguments.name,
            die_with_parent=arguments.die_with_parent,
            lease_seconds=arguments.lease_seconds,
            stall_seconds=arguments.stall_timeout,
            drain_seconds=arguments.drain_seconds,
            models=tuple(arguments.model),
            roots=tuple(arguments.shared),
            quiet_hours=arguments.quiet_hours,
            trust_remote_code=arguments.trust_remote_code,
            metrics_port=arguments.metrics_port,
        )
    sys.exit(code)


if __name__ == "__main__":
    main()
