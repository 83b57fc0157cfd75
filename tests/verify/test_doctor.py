"""`specmill doctor` passes on a machine that passes the tests, and its certificate reaches later manifests."""

import json
from pathlib import Path
from typing import Any

from producer.doctor import certificate_text
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
        *("oracle", "random words", "draws", "sequences", "company", "shapes", "threads"),
        *("embedded broker", "disk", "clock"),
    ]
    assert sum(check.seconds for check in certificate.checks) < 120
    specmill("run", "prompts.jsonl", "--out", "out", "--model", "scripted", "--quiet", **cache)
    versions = json.loads((tmp_path / "out" / "manifest.json").read_text())["versions"]
    assert versions["certificate"] == f"sha256:{certificate.digest}"
    assert specmill("verify", "out", "--quiet").returncode == 0


def test_a_broker_that_is_not_there_fails_the_checkup_with_its_meaning(specmill: Any, tmp_path: Path) -> None:
    done = specmill("doctor", "--quiet", "--broker", "redis://:secret@127.0.0.1:1/0", SPECMILL_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, "secret" in done.stdout + done.stderr, "NOT certified" in done.stdout) == (1, False, True)
    assert "what it means: workers and runs cannot meet there" in done.stdout


def test_the_digest_is_of_verdicts_and_not_of_times() -> None:
    checks = [Check("a", True, "1 ms", "m", 1.0), Check("a", True, "2 ms", "m", 2.0), Check("a", False, "1 ms", "m", 1.0)]
    first, again, failed = (Certificate(BACKEND, {"mlx": "1"}, (check,)) for check in checks)
    assert first.digest == again.digest != failed.digest
    assert "FAIL  a" in certificate_text(failed)
