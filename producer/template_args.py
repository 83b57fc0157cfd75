"""What a chat template is told besides the messages, such as `enable_thinking=false`."""

import json
import math

from schemas.errors import InputError

_OURS = frozenset(
    (
        "messages",
        "conversation",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "return_dict",
        "return_tensors",
        "chat_template",
    )
)
"""Names that we, or the tokenizer, give a meaning of their own."""


def template_args_from(texts: tuple[str, ...]) -> dict[str, bool | int | float | str | None]:
    """The arguments of `NAME=VALUE` texts; a value that is JSON's is taken as that, any other as text.

    Raises:
        InputError: not of that form, a name twice, or a value that no argument can have.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise InputError(f"--chat-template-arg must be NAME=VALUE, each name once; received {text!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return checked_template_args(found, "--chat-template-arg")


def checked_template_args(value: object, where: str) -> dict[str, bool | int | float | str | None]:
    """Arguments as JSON has them, in order of their names.

    Raises:
        InputError: not an object of plain values, or a name that is ours.
    """
    if not isinstance(value, dict):
        raise InputError(f"{where} must be an object; received {value!r}")
    for name, item in value.items():
        if not name.isidentifier() or name in _OURS:
            raise InputError(f"{where} {name!r} is no argument that can be given; received {item!r}")
        if not (item is None or isinstance(item, bool | int | str) or (isinstance(item, float) and math.isfinite(item))):
            raise InputError(f"{where} {name} must be true, false, null, a number or text; received {item!r}")
    return {name: value[name] for name in sorted(value)}
