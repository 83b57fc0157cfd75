"""`RequestedOptions`: what the lines of a file ask for: of the run where they all ask for the same, else each for itself."""

from dataclasses import dataclass, field

from producer.own_settings import OWN_OPTIONS
from schemas.constraint import Constraint
from schemas.errors import InputError

LOGPROBS = "logprobs"


@dataclass
class RequestedOptions:
    """Grows line by line; knows two lines that disagree, where there are.

    Attributes:
        values: run option → value of the first line that has it.
        lines: run option → what that line is called.
        conflicts: run option → what another line says instead, and what it is called.
    """

    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    conflicts: dict[str, tuple[str, str]] = field(default_factory=dict)
    _first: str | None = None

    def see(self, line: str, options: dict[str, object]) -> None:
        """Take in one line's options."""
        for name in [name for name in self.values if name not in self.conflicts]:
            if name not in options:
                self.conflicts[name] = ("nothing", line)
            elif options[name] != self.values[name]:
                self.conflicts[name] = (shown(options[name]), line)
        for name in [name for name in options if name not in self.values]:
            self.values[name], self.lines[name] = options[name], line
            if self._first is not None:
                self.conflicts[name] = ("nothing", self._first)
        if self._first is None:
            self._first = line

    def wanted(self, given: frozenset[str]) -> dict[str, object]:
        """The options that all lines ask for alike; those that the command line gives stand.

        Raises:
            InputError: lines disagree about what a run has one of.
        """
        for name in sorted(self.conflicts.keys() - given - OWN_OPTIONS - {LOGPROBS}):
            value, line = self.conflicts[name]
            raise InputError(
                f"all rows of a run share {option_of(name)}, but {self.lines[name]} asks for {shown(self.values[name])} and "
                f"{line} for {value}; give {option_of(name)} to use one value for all, or make one file and one run of each"
            )
        # Whoever asks for log-probabilities gets them, and a column is there for all rows.
        alike = self.values.keys() - (self.conflicts.keys() - {LOGPROBS}) - given
        return {name: value for name, value in self.values.items() if name in alike}

    def own(self, given: frozenset[str]) -> frozenset[str]:
        """The options in which lines differ, and which the command line does not give."""
        return frozenset((self.conflicts.keys() & OWN_OPTIONS) - given)


def option_of(name: str) -> str:
    """The command line's name of a run option."""
    other = {"samples": "--n", "template_args": "--chat-template-arg", "constraint": "--json-schema"}
    return other.get(name, f"--{name.replace('_', '-')}")


def shown(value: object) -> str:
    """A value as a message says it."""
    if isinstance(value, Constraint):
        return value.text
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)
