"""`run_monitor`: Flower as a view and nothing else: on loopback, behind a password, read-only, its history in a private folder."""

import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from producer.port_check import check_port
from schemas.errors import SpecmillError
from worker.app import make_app
from worker.engine.model_store import cache_dir
from worker.redis_client import masked

USER = "specmill"
PASSWORD_VARIABLE = "SPECMILL_MONITOR_PASSWORD"
COLUMNS = "name,args,state,result,runtime,worker"
LEAVE_SECONDS = 5.0
_SAVE_MILLISECONDS = 30_000


def run_monitor(broker_url: str, address: str, port: int, folder: Path | None, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; call it from the main thread.

    Args:
        broker_url: the broker whose workers are watched.
        address: where to listen.
        port: on which port.
        folder: keeps the history; None is one in the user's cache.
        say: is told the address, and the password where it was made up here.

    Raises:
        SpecmillError: Flower is not installed, or the port is taken.
    """
    try:
        import flower  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise SpecmillError("specmill monitor needs Flower: pip install 'specmill[monitor]'") from error
    check_port(address, port, "--port")
    folder = folder or cache_dir() / "monitor"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # the history is a pickle: whoever may write it may run code as us
    config = folder / "flowerconfig.py"
    config.write_text("")  # or Flower would run whatever flowerconfig.py lies in the folder that the user is in
    given = os.environ.get(PASSWORD_VARIABLE)
    password = given or secrets.token_urlsafe(18)
    os.environ["FLOWER_BASIC_AUTH"] = f"{USER}:{password}"  # not on the command line, which every user of the machine can read
    say(f"Flower for {masked(broker_url)}: http://{address}:{port}")
    say(f"user {USER}, password {'as in ' + PASSWORD_VARIABLE if given else password + '  (shown this once)'}; Ctrl-C ends it")
    arguments = [f"--address={address}", f"--port={port}", "--read_only=true", f"--conf={config}", f"--tasks_columns={COLUMNS}"]
    arguments += ["--persistent=true", f"--db={folder / 'history'}", f"--state_save_interval={_SAVE_MILLISECONDS}", "--logging=warning"]
    threading.Thread(target=_leave_in_time, name="leave", daemon=True).start()
    make_app(broker_url).start(["--quiet", "flower", *arguments])


def _leave_in_time() -> None:
    """End the process soon after its main thread: while the broker is away, Flower's own threads would hold it for ever."""
    threading.main_thread().join()
    time.sleep(LEAVE_SECONDS)
    os._exit(0)
