"""A line of an OpenAI batch file: `custom_id`, `method`, `url` and the `body` of one request, with the sampling that it asks for."""

import json
from dataclasses import dataclass

from producer.constraint_options import json_schema_constraint
from producer.own_settings import SETTINGS, checked_setting
from producer.template_args import checked_template_args
from schemas.errors import GrammarError, InputError

URLS = ("/v1/chat/completions", "/v1/completions")
ENVELOPE = ("body", "method", "url")
"""The columns that carry the request and are not the user's own."""

_WITHOUT_EFFECT = ("model", "user", "metadata", "store", "stream", "stream_options", "service_tier", "messages", "prompt")
_ZEROES: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "top_logprobs": (0,),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
"""What else a request may say as long as it asks for nothing."""


@dataclass(frozen=True)
class OpenAIRequest:
    """One request.

    Attributes:
        prompt: of a completion, or None.
        messages: of a chat completion, as they stand there, or None; exactly one of the two is set.
        options: option of the run → value that the request asks for; only what it says, nulls aside.
    """

    prompt: object
    messages: object
    options: dict[str, object]

    @classmethod
    def of(cls, columns: dict[str, object]) -> "OpenAIRequest | None":
        """The request of a line, or None for a line that is none.

        Raises:
            InputError: a request that asks for what a run cannot do; the message names it.
        """
        body = columns.get("body")
        if not isinstance(body, dict) or columns.get("prompt") is not None or columns.get("messages") is not None:
            return None
        url = columns.get("url")
        if url is not None and url not in URLS:
            raise InputError(f"url must be one of {', '.join(URLS)}; received {url!r}")
        options: dict[str, object] = {}
        for name, value in body.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            if name in SETTINGS:
                options[SETTINGS[name]] = checked_setting(name, value, f"body.{name}")
            elif name == "logprobs":
                options |= {"logprobs": True} if value is not False else {}
            elif name == "response_format":
                options |= _form(value)
            elif name == "chat_template_kwargs":
                options["template_args"] = checked_template_args(value, "body.chat_template_kwargs")
            elif value not in _ZEROES.get(name, ()):
                raise InputError(f"body.{name} is not supported")
        prompt, messages = body.get("prompt"), body.get("messages")
        if (prompt is None) == (messages is None):
            raise InputError("body must hold either messages or prompt; received " + ("neither" if prompt is None else "both"))
        return cls(prompt, messages, options)


def _form(value: object) -> dict[str, object]:
    """The form that a response format asks for."""
    given = value if isinstance(value, dict) else {}
    try:
        match given:
            case {"type": "text"}:
                return {}
            case {"type": "json_object"}:
                return {"constraint": json_schema_constraint({"type": "object"})}
            case {"type": "json_schema", "json_schema": {"schema": schema}}:
                return {"constraint": json_schema_constraint(schema)}
    except (GrammarError, InputError) as error:
        raise InputError(f"body.response_format: {error}") from error
    raise InputError(
        'body.response_format must be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": …}}; '
        f"received {json.dumps(value)[:80]}"
    )
