"""`Record`: one line of a prompts file, checked. `RecordReader` makes records of lines, the same way in every pass."""

import json
import math
import re
from array import array
from dataclasses import dataclass, field

from producer.column_path import ColumnPath, kind
from producer.openai_request import ENVELOPE, OpenAIRequest
from producer.origins import Origins
from producer.own_settings import SETTINGS, setting_from_cell
from producer.prompt_template import PromptTemplate
from schemas.errors import InputError
from schemas.wire import canonical_json

MAX_LINE_BYTES = 10 * 1024 * 1024
MAX_NESTING = 32  # levels; deeper columns are no use in a table and some readers crash on them
MAX_ID_CHARACTERS = 512
ROLES = ("system", "user", "assistant", "tool")
ID_COLUMNS = ("id", "custom_id")
_TEXT_SHOWN = 60  # characters of a received value that a message repeats
_SURROGATE = re.compile("[\ud800-\udfff]")

_NAMED = {name: ColumnPath(name, name) for name in (*ID_COLUMNS, "prompt", "messages")}

Message = dict[str, str]


@dataclass(frozen=True)
class Record:
    """One input record.

    Attributes:
        row: 0-based number among the file's records, blank lines not counted.
        line: 1-based line of the file.
        record_id: the user's id as text, or the row number, or `line-N` for a bad line without an id.
        prompt: the prompt as text, or None.
        messages: the conversation, or None; exactly one of the two is set unless the line is bad.
        own: the user's other columns, in the line's order, JSON values.
        bad_input: why the line cannot become a prompt, or None.
        options: run option → value that the line asks for; not part of the record's digest.
        sample: which of its completions is meant, where records ask for different numbers of them; else None.
    """

    row: int
    line: int
    record_id: str
    prompt: str | None = None
    messages: list[Message] | None = None
    own: dict[str, object] = field(default_factory=dict)
    bad_input: str | None = None
    options: dict[str, object] = field(default_factory=dict)
    sample: int | None = None

    def canonical(self) -> bytes:
        """The record as one line of JSON: what digests are taken over. The line number is in it only where it shows in the dataset."""
        content = {"id": self.record_id, "prompt": self.prompt, "messages": self.messages, "own": self.own, "bad": self.bad_input}
        return canonical_json(content).encode() + b"\n"  # type: ignore[arg-type]  # JSON values by construction


@dataclass(frozen=True)
class RecordReader:
    """How lines become records; depends on nothing but the line and its numbers.

    Attributes:
        plain_text: every line is a prompt; otherwise every line is a JSON object.
        id_column: where the record id is; None looks for `id`, then `custom_id`, then takes the row number.
        prompt_column: where the prompt is; None looks for `prompt` or `messages`, then for the body of an OpenAI batch request.
        template: makes the prompt of the line's columns; then `prompt_column` is None.
        system: a system message for every record that has none.
        prefix: messages that go before every conversation, behind its system message.
        per_row: name of a setting → the column that holds each row's own.
        numbers: of the records, where only some of a file's are read; they are the ids of records without one.
        spooled: lines are those of a `producer.spool.Spool`.
        origins: what lines are called.
    """

    plain_text: bool = False
    id_column: ColumnPath | None = None
    prompt_column: ColumnPath | None = None
    template: PromptTemplate | None = None
    system: str | None = None
    prefix: tuple[Message, ...] = ()
    per_row: tuple[tuple[str, ColumnPath], ...] = ()
    numbers: "array[int] | None" = None
    spooled: bool = False
    origins: Origins = field(default_factory=Origins)

    def read(self, data: bytes | None, row: int, line: int) -> Record:
        """The record of one line, with `bad_input` filled when the line cannot become a prompt.

        Args:
            data: the line without its line end; None for a line that was too long to be read.
            row: number of the record.
            line: number of the line.
        """
        try:
            text = _decoded(data)
            if self.plain_text:
                return Record(row, line, str(row), *self._in_conversation(_checked_text(text, "the line"), None))
            if self.spooled and text.startswith("!"):
                raise InputError(text[1:])
            columns = _parsed(text)
        except InputError as error:
            return Record(row, line, f"line-{line}", bad_input=f"{self.origins.name(line)}: {error}")
        id_path = self._id_path(columns)
        consumed = self._consumed(id_path)
        own = {name: value for name, value in columns.items() if name not in consumed}
        record_id = None
        try:
            record_id = self._record_id(columns, id_path)
            request = OpenAIRequest.of(columns) if self.prompt_column is None and self.template is None else None
            if request is not None:
                own = {name: value for name, value in own.items() if name not in ENVELOPE}
            prompt, messages = self._prompt(columns, request)
            options = {**(request.options if request is not None else {}), **self._settings(columns)}
        except InputError as error:
            return Record(row, line, record_id or f"line-{line}", own=own, bad_input=f"{self.origins.name(line)}: {error}")
        number = row if self.numbers is None else self.numbers[row]
        return Record(row, line, record_id or str(number), prompt, messages, own, options=options)

    def _settings(self, columns: dict[str, object]) -> dict[str, object]:
        """Run option → the row's own value, where its column has one."""
        found: dict[str, object] = {}
        for name, path in self.per_row:
            value = path.of(columns) if path.column in columns else None
            if value is not None:
                found[SETTINGS[name]] = setting_from_cell(name, value, path.text)
        return found

    def _id_path(self, columns: dict[str, object]) -> ColumnPath | None:
        if self.id_column is not None:
            return self.id_column
        return next((_NAMED[name] for name in ID_COLUMNS if columns.get(name) is not None), None)

    def _prompt_path(self, columns: dict[str, object]) -> ColumnPath:
        if self.prompt_column is not None:
            return self.prompt_column
        prompt, messages = columns.get("prompt"), columns.get("messages")
        if prompt is not None and messages is not None:
            raise InputError("both prompt and messages; --prompt-column says which one to take")
        if prompt is None and messages is None:
            raise InputError("prompt is null" if "prompt" in columns else "neither prompt nor messages")
        return _NAMED["messages" if prompt is None else "prompt"]

    def _consumed(self, id_path: ColumnPath | None) -> set[str]:
        """The columns that become `record_id`, `prompt` and `messages` as they stand, and so are not the user's own any more."""
        consumed = {"prompt", "messages"} if self.prompt_column is None and self.template is None else set()
        consumed.update(path.column for path in (id_path, self.prompt_column) if path is not None and path.plain)
        return consumed

    def _record_id(self, columns: dict[str, object], path: ColumnPath | None) -> str | None:
        if path is None:
            return None
        value = path.of(columns)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InputError(f"the record id {path.text} must be text or an integer; received {kind(value)}")
        text = _checked_text(str(value), f"the record id {path.text}")
        if not 1 <= len(text) <= MAX_ID_CHARACTERS:
            raise InputError(f"the record id {path.text} must have 1 to {MAX_ID_CHARACTERS} characters; received {len(text)}")
        return text

    def _prompt(self, columns: dict[str, object], request: OpenAIRequest | None) -> tuple[str | None, list[Message] | None]:
        if self.template is not None:
            return self._in_conversation(_checked_text(self.template.render(columns), "the rendered template"), None)
        if request is not None:
            wanted, value = ("body.messages", request.messages) if request.prompt is None else ("body.prompt", request.prompt)
            return self._in_conversation(*_checked_prompt(value, wanted, text=request.prompt is not None, listed=request.prompt is None))
        path = self._prompt_path(columns)
        text, listed = (True, True) if self.prompt_column is not None else (path.text == "prompt", path.text == "messages")
        return self._in_conversation(*_checked_prompt(path.of(columns), path.text, text=text, listed=listed))

    def _in_conversation(self, prompt: str | None, messages: list[Message] | None) -> tuple[str | None, list[Message] | None]:
        """The prompt behind the system message, unless it begins with one, and the prefix."""
        if self.system is None and not self.prefix:
            return prompt, messages
        turns = messages or [{"role": "user", "content": str(prompt)}]
        own = turns[:1] if turns[0]["role"] == "system" else []
        system = own or ([{"role": "system", "content": self.system}] if self.system is not None else [])
        return None, [*system, *self.prefix, *turns[len(own) :]]


def _checked_prompt(value: object, what: str, *, text: bool, listed: bool) -> tuple[str | None, list[Message] | None]:
    if text and isinstance(value, str):
        return _checked_text(value, what), None
    if listed and isinstance(value, list):
        return None, checked_messages(value, what)
    wanted = " or ".join(name for name, yes in (("text", text), ("a list of messages", listed)) if yes)
    raise InputError(f"{what} must be {wanted}; received {kind(value)}")


def _decoded(data: bytes | None) -> str:
    if data is None:
        raise InputError(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start + 1})") from error


def _parsed(text: str) -> dict[str, object]:
    try:
        value = _DECODER.decode(text)
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"nested deeper than {MAX_NESTING} levels") from error
    except json.JSONDecodeError as error:  # its own text counts lines in the text, and would call every one of them 1
        raise InputError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"must be a JSON object; received {kind(value)}")
    escaped = "\\u" in text  # half a surrogate pair and NUL can only come as an escape: UTF-8 and JSON have neither
    for name, item in value.items():
        if escaped:
            _check_name(name)
        if escaped or not isinstance(item, str):
            _check_value(item, name, MAX_NESTING)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return value


def _no_constant(name: str) -> object:
    raise InputError(f"not JSON: {name} is no JSON number (write null)")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _check_name(name: str) -> None:
    if "\x00" in name or _SURROGATE.search(name):
        raise InputError(f"the key {name[:_TEXT_SHOWN]!r} holds a NUL character or half of a surrogate pair")


def _check_value(value: object, where: str, levels: int) -> None:
    """Refuse what no table can hold: numbers beyond float64, lone surrogates, bottomless nesting."""
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise InputError(f"{where} holds half of a surrogate pair, which no text encoding can store")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{where} holds a number beyond float64")
    elif isinstance(value, list | dict):
        if levels <= 0:
            raise InputError(f"nested deeper than {MAX_NESTING} levels")
        if isinstance(value, dict):
            for name in value:
                _check_name(name)
        for item in value.values() if isinstance(value, dict) else value:
            _check_value(item, where, levels - 1)


def _checked_text(text: str, what: str) -> str:
    if "\x00" in text:
        raise InputError(f"{what} holds a NUL character")
    return text


def checked_messages(items: list[object], what: str) -> list[Message]:
    """A conversation, each message an object with a known role and text.

    Raises:
        InputError: what is wrong with which of them.
    """
    if not items:
        raise InputError(f"{what} must hold at least one message; received an empty list")
    return [_checked_message(item, f"{what}[{number}]") for number, item in enumerate(items)]


def _checked_message(item: object, where: str) -> Message:
    if not isinstance(item, dict):
        raise InputError(f"{where} must be an object with role and content; received {kind(item)}")
    for name in ("role", "content"):
        if not isinstance(item.get(name), str):
            raise InputError(f"{where}.{name} must be text; received {kind(item[name]) if name in item else 'nothing'}")
    if item["role"] not in ROLES:
        raise InputError(f"{where}.role must be one of {', '.join(ROLES)}; received {item['role'][:_TEXT_SHOWN]!r}")
    extra = [name for name, value in item.items() if name not in ("role", "content") and value is not None]
    if extra:
        raise InputError(f"{where} has {extra[0][:_TEXT_SHOWN]!r}; a message holds role and content only")
    return {"role": item["role"], "content": _checked_text(item["content"], f"{where}.content")}
