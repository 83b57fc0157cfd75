"""A line of an OpenAI batch file: `custom_id`, `method`, `url` and the `body` of one request, whose sampling becomes the run's."""

from dataclasses import dataclass

from producer.column_path import kind
from schemas.errors import InputError

URLS = ("/v1/chat/completions", "/v1/completions")
ENVELOPE = ("body", "method", "url")
"""The columns that carry the request and are not the user's own."""

SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "min_tokens": "min_tokens",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n": "samples",
    "seed": "seed",
    "stop": "stop",
}
"""Parameter of the request → the run's option for it."""

_WITHOUT_EFFECT = ("model", "user", "metadata", "store", "stream", "stream_options", "service_tier", "messages", "prompt", "logprobs")
_ZEROES: dict[str, tuple[object, ...]] = {
    "response_format": ({"type": "text"},),
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
            if name in SAMPLING:
                options[SAMPLING[name]] = _checked(name, value)
            elif value not in _ZEROES.get(name, ()):
                raise InputError(f"body.{name} is not supported")
        prompt, messages = body.get("prompt"), body.get("messages")
        if (prompt is None) == (messages is None):
            raise InputError("body must hold either messages or prompt; received " + ("neither" if prompt is None else "both"))
        return cls(prompt, messages, options)


def _checked(name: str, value: object) -> object:
    """A parameter's value as the run's option takes it; its interval is judged with the options'."""
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise InputError(f"body.stop must be text or a list of texts, none empty; received {kind(value)}")
        return tuple(texts)
    if name == "logit_bias":
        if not isinstance(value, dict):
            raise InputError(f"body.logit_bias must be an object; received {kind(value)}")
        return value
    whole = name in ("min_tokens", "top_k", "max_tokens", "max_completion_tokens", "n", "seed")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InputError(f"body.{name} must be {'an integer' if whole else 'a number'}; received {kind(value)}")
    return value if whole else float(value)
