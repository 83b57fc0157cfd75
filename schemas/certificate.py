"""`Certificate`: what `specmill doctor` found on a machine; later manifests name its digest."""

import hashlib
from dataclasses import dataclass

from schemas.profile import Backend
from schemas.wire import Wire


@dataclass(frozen=True)
class Check(Wire):
    """One thing that was tested.

    Attributes:
        name: two or three words.
        passed: whether it is as it must be.
        detail: what was found, one line.
        meaning: what a failure means for rows and runs, one line.
        seconds: wall time of the check; no part of the digest.
    """

    name: str
    passed: bool
    detail: str
    meaning: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Certificate(Wire):
    """The outcome of one checkup.

    Attributes:
        backend: the machine, as runs record it.
        versions: library → version.
        checks: what was tested, in order.
    """

    backend: Backend
    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def digest(self) -> str:
        """sha256 hex over backend, versions and verdicts; the same machine in the same state has the same one."""
        verdicts = [[check.name, check.passed] for check in self.checks]
        parts = [self.backend.to_json(), *(f"{name} {version}" for name, version in sorted(self.versions.items())), str(verdicts)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
