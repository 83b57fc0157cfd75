"""`specmill worker install`: what launchd and systemd are given."""

import configparser
import os
import plistlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from producer.cli import main
from producer.worker_service import worker_service

BROKER = "redis://specmill:se$cr'et@10.0.0.7:6379/0"


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_the_files_are_private_and_the_unit_holds_no_secret(platform: str, tmp_path: Path) -> None:
    service = worker_service(BROKER, ["--models=a b"], 30.0, tmp_path, platform)
    for _ in range(2):
        service.write()
    for path in (service.unit, service.secret):
        assert path.stat().st_mode & 0o077 == 0
    assert "se$cr" not in service.unit_text
    assert "se$cr" not in service.text()
    assert "***@10.0.0.7" in service.text()


def test_launchd_runs_what_the_shell_makes_of_it(tmp_path: Path) -> None:
    service = worker_service(BROKER, ["--models=a b"], 30.0, tmp_path, "darwin")
    service.write()
    plist = plistlib.loads(service.unit_text.encode())
    assert plist["ExitTimeOut"] > 30
    shell, flag, script = plist["ProgramArguments"]
    probe = script.replace(shlex.quote(sys.executable), f"{shlex.quote(sys.executable)} -c 'import os, sys; print(os.environ, sys.argv)'")
    said = subprocess.run([shell, flag, probe], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}).stdout
    assert repr(BROKER) in said
    assert said.rstrip().endswith("'producer.cli', 'worker', '--models=a b']")


def test_systemd_gets_a_unit_that_it_can_read(tmp_path: Path) -> None:
    service = worker_service(BROKER, ["--models=50% $x"], 30.0, tmp_path, "linux")
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(service.unit_text)
    assert unit["Service"]["EnvironmentFile"] == str(service.secret)
    assert unit["Service"]["ExecStart"].endswith('worker "--models=50%% $$x"')
    assert unit["Service"]["KillMode"] == "mixed"
    assert int(unit["Service"]["TimeoutStopSec"]) > 30


def test_the_command_shows_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    runner = CliRunner(env={"SPECMILL_BROKER": BROKER})
    shown = runner.invoke(main, ["worker", "--models", "m", "install", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "--models=m" in shown.output
    assert list(tmp_path.iterdir()) == []
    assert runner.invoke(main, ["worker", "install"]).exit_code == 0
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2
    assert CliRunner().invoke(main, ["worker", "install"]).exit_code == 2
