"""`BackendRule`: what `--backend` demands of a run's part files, and what has landed already."""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.errors import BackendError
from schemas.manifest import ShardRecord
from schemas.profile import ANY, SAME, Backend
from schemas.run_spec import RunSpec
from worker.engine.client import EngineProcess
from worker.ledger import Ledger

PROBLEMS_SHOWN = 3


@dataclass
class BackendRule:
    """The rule of one run.

    Attributes:
        wanted: the class that part files must have, or None: any may, or nothing has decided it yet.
    """

    wanted: str | None
    _demand: str

    @classmethod
    def of(cls, spec: RunSpec) -> "BackendRule":
        """The rule before anything has landed."""
        return cls(None if spec.backend in (ANY, SAME) else spec.backend, spec.backend)

    def admits(self, backend: Backend) -> bool:
        """Whether a part that was computed there may land; the first one decides for `same`. Error rows that no engine made always may."""
        name = backend.class_name
        if name is None or self._demand == ANY:
            return True
        if self.wanted is None:
            self.wanted = name
        return name == self.wanted

    def violations(self, records: Iterable[ShardRecord]) -> list[str]:
        """One line per part file that the rule forbids."""
        return [
            f"{record.file} was computed on {record.backend.class_name}; --backend {self._demand} wants {self.wanted}"
            for record in records
            if not self.admits(record.backend)
        ]

    def check_landed(self, records: Iterable[ShardRecord]) -> None:
        """Take in what an earlier session has landed.

        Raises:
            BackendError: the rule forbids some of it; the message names the first files.
        """
        if problems := self.violations(records):
            raise BackendError("; ".join(problems[:PROBLEMS_SHOWN]))

    def announce(self, ledger: Ledger) -> None:
        """Tell the workers of a `same` run what its landed parts have decided."""
        if self._demand == SAME and self.wanted is not None:
            ledger.decide_class(self.wanted)

    def check_result(self, worker: str, backend: Backend, ledger: Ledger) -> None:
        """Judge a shard that has come back.

        Two workers can both begin a `same` run as its first when the broker has lost its memory between them.

        Raises:
            BackendError: the rule forbids it.
        """
        undecided = self.wanted is None
        if not self.admits(backend):
            raise BackendError(f"worker {worker} is of the backend class {backend.class_name}; the run wants {self.wanted}")
        if undecided:
            self.announce(ledger)

    def check_here(self, spec: RunSpec) -> None:
        """Find out before anything starts whether this machine may compute the run.

        Raises:
            BackendError: it is of another class.
            EngineError: the engine does not start here.
        """
        if self.wanted is None:
            return
        engine = EngineProcess()
        try:
            mine = engine.backend_class(spec)
        finally:
            engine.close()
        if mine != self.wanted:
            raise BackendError(
                f"the run wants workers of the backend class {self.wanted} (--backend {self._demand}); this machine is {mine}, and only "
                "its own workers reach the embedded broker: give --broker, or --backend any"
            )
