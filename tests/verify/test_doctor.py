"""`specmill doctor` passes on a machine that passes the tests, and its certificate reaches later manifests."""

import json
from pathlib import Path
from typing import Any

import pytest

from producer.doctor import certificate_text, host_checks
from schemas.certificate import Certificate, Check
from schemas.profile import Backend

BACKEND = Backend(device="cpu", chip="x", mlx="1", blas="", row_invariant=True)


def test_this_machine_is_certified_and_later_manifests_say_so(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    cache = {"SPECMILL_CACHE": str(tmp_path / "cache")}
    done = specmill("doctor", "--json", **cache)
    certificate = Certificate.from_json(done.stdout)
    assert (done.returncode, certificate.passed) == (0, True), done.stdout + done.stderr
    names = [check.name for check in certificate.checks]
    assert names == [
        *("oracle", "random words", "decisions", "draws", "sequences", "company", "shapes", "threads"),
        *("embedded broker", "disk", "clock"),
    ]
    assert sum(check.seconds for check in certificate.checks) < 120
    specmill("run", "prompts.jsonl", "--out", "out", "--model", "scripted", "--quiet", **cache)
    versions = json.loads((tmp_path / "out" / "manifest.json").read_text())["versions"]
    assert versions["certificate"] == f"sha256:{certificate.digest}"
    assert specmill("verify", "out", "--quiet").returncode == 0


def test_a_broker_that_is_not_there_fails_its_check_alone_and_no_password_is_shown(tmp_path: Path) -> None:
    checks = list(host_checks(tmp_path, "redis://:secret@127.0.0.1:1/0"))
    assert [(check.name, check.passed) for check in checks] == [
        ("embedded broker", True),
        ("broker", False),
        ("disk", True),
        ("clock", True),
    ]
    text = certificate_text(Certificate(BACKEND, {}, tuple(checks)))
    assert "NOT certified" in text
    assert "what it means: workers and runs cannot meet there" in text
    assert "secret" not in text


def test_a_full_disk_fails_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producer.doctor.FREE_BYTES", 1 << 62)
    assert [check.name for check in host_checks(tmp_path, None) if not check.passed] == ["disk"]


def test_the_digest_is_of_verdicts_and_not_of_times() -> None:
    checks = [Check("a", True, "1 ms", "m", 1.0), Check("a", True, "2 ms", "m", 2.0), Check("a", False, "1 ms", "m", 1.0)]
    first, again, failed = (Certificate(BACKEND, {"mlx": "1"}, (check,)) for check in checks)
    assert first.digest == again.digest != failed.digest
    assert "FAIL  a" in certificate_text(failed)
