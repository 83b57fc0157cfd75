"""`WorkerService`: a worker that the system starts: launchd on macOS, systemd elsewhere.

The broker's address, with its password, goes into a file of mode 0600 that only the service reads; neither the unit nor a process list
shows it.
"""

import os
import plistlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from worker import BROKER_VARIABLE
from worker.redis_client import masked

LABEL = "org.specmill.worker"
GRACE_SECONDS = 15  # more than the worker's own time to drain, before the system kills it


@dataclass(frozen=True)
class WorkerService:
    """The files of one service and how to start it.

    Attributes:
        unit: the plist or unit file.
        unit_text: what is in it.
        secret: the file with the broker's address.
        secret_text: what is in it.
        start: the shell command that starts the service, now and at every login.
        stop: the one that stops it and keeps it stopped.
    """

    unit: Path
    unit_text: str
    secret: Path
    secret_text: str
    start: str
    stop: str

    def write(self) -> None:
        """Write both files, replacing what an earlier installation wrote."""
        for path, text in ((self.secret, self.secret_text), (self.unit, self.unit_text)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)

    def text(self) -> str:
        """What would be written, the password masked, and how to start it."""
        shown = f"{BROKER_VARIABLE}={masked(shlex.split(self.secret_text)[0].partition('=')[2])}"
        return f"# {self.secret}\n{shown}\n\n# {self.unit}\n{self.unit_text}\n# start: {self.start}\n# stop:  {self.stop}"


def worker_service(broker_url: str, options: list[str], drain_seconds: float, home: Path, platform: str = sys.platform) -> WorkerService:
    """The service for this user.

    Args:
        broker_url: with its password.
        options: of `specmill worker`.
        drain_seconds: how long the worker may take to end.
        home: the user's folder.
        platform: as in `sys.platform`.
    """
    secret = home / ".config" / "specmill" / "worker.env"
    command = [sys.executable, "-P", "-m", "producer.cli", "worker", *options]
    patience = int(drain_seconds) + GRACE_SECONDS
    secret_text = f"{BROKER_VARIABLE}={shlex.quote(broker_url)}\n"
    if platform == "darwin":
        unit = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        log = str(home / "Library" / "Logs" / "specmill-worker.log")
        script = f"set -a; . {shlex.quote(str(secret))}; exec {shlex.join(command)}"
        plist = {
            "Label": LABEL,
            "ProgramArguments": ["/bin/sh", "-c", script],
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 60,  # a worker that cannot start is not started in a loop
            "ExitTimeOut": patience,
            "ProcessType": "Standard",  # Background would be throttled
            "StandardOutPath": log,
            "StandardErrorPath": log,
            "WorkingDirectory": str(home),
        }
        start = f"launchctl bootstrap gui/$(id -u) {shlex.quote(str(unit))}"
        return WorkerService(unit, plistlib.dumps(plist).decode(), secret, secret_text, start, f"launchctl bootout gui/$(id -u)/{LABEL}")
    unit = home / ".config" / "systemd" / "user" / "specmill-worker.service"
    lines = [
        "[Unit]",
        "Description=specmill worker",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=5",
        "",
        "[Service]",
        f"EnvironmentFile={secret}",
        f"ExecStart={' '.join(_systemd_word(word) for word in command)}",
        "Restart=on-failure",
        "RestartSec=10",
        "KillMode=mixed",
        f"TimeoutStopSec={patience}",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    start = "systemctl --user daemon-reload && systemctl --user enable --now specmill-worker"
    return WorkerService(unit, "\n".join(lines), secret, secret_text, start, "systemctl --user disable --now specmill-worker")


def _systemd_word(word: str) -> str:
    """A word of `ExecStart`: quoted, with the signs that systemd expands doubled."""
    doubled = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return '"' + doubled.replace('"', '\\"') + '"' if not doubled.replace("-", "").replace("/", "").replace(".", "").isalnum() else doubled
