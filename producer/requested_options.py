"""`RequestedOptions`: what the lines of an OpenAI batch file ask of a run, as long as they all ask for the same."""

from dataclasses import dataclass, field

from schemas.errors import InputError


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
        """The options to run with; those that the command line gives stand.

        Raises:
            InputError: lines disagree about an option that was not given.
        """
        for name in sorted(self.conflicts.keys() - given):
            value, line = self.conflicts[name]
            raise InputError(
                f"all rows of a run share their sampling, but {self.lines[name]} asks for {name} {shown(self.values[name])} and "
                f"{line} for {value}; give {option_of(name)} to use one value for all, or make one file and one run of each"
            )
        return {name: value for name, value in self.values.items() if name not in given}


def option_of(name: str) -> str:
    """The command line's name of a run option."""
    return "--n" if name == "samples" else f"--{name.replace('_', '-')}"


def shown(value: object) -> str:
    """A value as a message says it."""
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)
