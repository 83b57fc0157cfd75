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
from worker.app import TASK, make_app
from worker.engine.client import EngineProcess
from worker.lease import LEASE_SECONDS
from worker.redis_client import masked, password_of
from worker.task import ShardTask

BROKER_VARIABLE = "SPECMILL_BROKER"  # a password on the command line would be visible to every user of the machine
END_SECONDS = 5.0  # from the wish to end to a forced end
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
    level: int = logging.INFO,
) -> int:
    """Serve shards until SIGTERM or SIGINT; call it from the main thread.

    Args:
        broker_url: where the queue and the ledger are. A broker that is away is waited for.
        name: the worker's own name, unique among the workers of a broker; `host:pid` when None.
        die_with_parent: also end when standard input ends.
        lease_seconds: time to live of a lease; the coordinator must use the same.
        level: logging level.

    Returns:
        The process's exit code, 0 after an orderly end.

    Raises:
        BrokerError: not a broker address.
    """
    _set_up_logging(broker_url, level)
    ending = _Ending()
    engine = EngineProcess()
    name = name or worker_name()
    task = ShardTask(broker_url, name, engine, ending.is_set, lease_seconds=lease_seconds)
    ending.watch(task, engine, parent=die_with_parent)
    app = make_app(broker_url)
    _register(app, task)
    logger.info("worker %s takes shards from %s", name, masked(broker_url))
    try:
        while not ending.is_set():
            _serve(app)
            if not ending.is_set():
                # A payload that is no message kills Celery's consumer; the engine and its model stay.
                logger.warning("the consumer ended by itself; it starts again in %.0f s", RESTART_SECONDS)
                ending.wait(RESTART_SECONDS)
    finally:
        task.close()
        engine.close()
        ending.done()
    return 0


def _serve(app: Celery) -> None:
    """One life of the Celery part."""
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


class _Ending:
    """The wish to end, however it is expressed, and the promise that it is kept in time."""

    def __init__(self) -> None:
        self._wished = threading.Event()
        self._orphaned = False
        self._done = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._wish())

    def is_set(self) -> bool:
        return self._wished.is_set()

    def wait(self, seconds: float) -> None:
        self._wished.wait(seconds)

    def done(self) -> None:
        self._done.set()

    def watch(self, task: ShardTask, engine: EngineProcess, *, parent: bool) -> None:
        """Keep the promise; with `parent`, the end of standard input is a wish too."""
        threading.Thread(target=self._keep, args=(task, engine), name="ending", daemon=True).start()
        if parent:
            threading.Thread(target=self._follow_parent, name="parent", daemon=True).start()

    def _wish(self) -> None:
        self._wished.set()
        celery_state.should_stop = 0

    def _follow_parent(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        self._orphaned = True
        self._wish()

    def _keep(self, task: ShardTask, engine: EngineProcess) -> None:
        """Force the end when it takes too long, or when nobody waits for Celery's farewell: that takes a second."""
        self._wished.wait()
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
        os._exit(int(task.busy))


class _MaskingFormatter(logging.Formatter):
    """Never shows the broker's password, not even in a traceback."""

    def __init__(self, broker_url: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._password = password_of(broker_url)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.replace(self._password, "***") if self._password else text


def _set_up_logging(broker_url: str, level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_MaskingFormatter(broker_url))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("specmill", "worker"):
        logging.getLogger(name).setLevel(level)


def main() -> None:
    """Entry point of `python -m worker.main`, which local workers run; people use `specmill worker`."""
    parser = argparse.ArgumentParser(prog="worker.main")
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("--lease-seconds", type=float, default=LEASE_SECONDS)
    arguments = parser.parse_args()
    broker_url = os.environ.pop(BROKER_VARIABLE, "")
    if not broker_url:
        raise BrokerError(f"the environment variable {BROKER_VARIABLE} must hold the broker's address; received ''")
    sys.exit(run_worker(broker_url, die_with_parent=arguments.die_with_parent, lease_seconds=arguments.lease_seconds))


if __name__ == "__main__":
    main()
