"""From a request to prompt ids: the chat template applied straight to ids, so that no second BOS can slip in."""

from typing import Any

import jinja2

from schemas.errors import BadInputError, EmptyPromptError, PromptTooLongError, TemplateError
from worker.engine.completion import Request
from worker.engine.prefix_tree import common_length


def encode_prompt(request: Request, tokenizer: Any, *, raw: bool) -> list[int]:
    """The request's prompt ids.

    Args:
        request: a bare `prompt` counts as one user message, unless `raw`.
        tokenizer: mlx-lm's `TokenizerWrapper`.
        raw: encode the prompt as it stands, with the special tokens that the tokenizer itself adds.

    Raises:
        BadInputError: the request was marked bad when it was read.
        TemplateError: there is no chat template, or it refused the messages.
        EmptyPromptError: the prompt encodes to nothing.
    """
    if request.bad_input is not None:
        raise BadInputError(request.bad_input)
    if raw:
        if request.prompt is None:
            raise TemplateError("a record with messages needs the chat template; received --raw")
        ids = tokenizer.encode(request.prompt)
    else:
        ids = _apply_template(tokenizer, _messages(request))
    if not ids:
        raise EmptyPromptError("the prompt must encode to at least 1 token; received 0")
    return [int(token) for token in ids]


def last_message_start(request: Request, tokenizer: Any, prompt_ids: list[int]) -> int:
    """How many of a prompt's ids stand before its last message's content, and would if that content were another.

    Args:
        request: the row's; it was encoded with the chat template.
        tokenizer: the same.
        prompt_ids: what `encode_prompt` made of it.
    """
    *earlier, last = _messages(request)
    try:
        others = [_apply_template(tokenizer, [*earlier, {**last, "content": content}]) for content in ("a", "1")]
    except TemplateError:  # a template that wants more of the content has no such place
        return 0
    return min(common_length(prompt_ids, ids) for ids in others)


def check_length(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    """Refuse a prompt that leaves no room for its completion.

    Raises:
        PromptTooLongError: prompt_tokens + max_tokens exceeds limit, in tokens.
    """
    if prompt_tokens + max_tokens > limit:
        raise PromptTooLongError(
            f"prompt and completion must fit {limit} tokens; received a prompt of {prompt_tokens} with max_tokens {max_tokens}"
        )


def _messages(request: Request) -> list[Any]:
    return request.messages if request.messages is not None else [{"role": "user", "content": request.prompt}]


def _apply_template(tokenizer: Any, messages: list[Any]) -> list[int]:
    if not tokenizer.has_chat_template:
        raise TemplateError("the model's tokenizer has no chat template; use --raw, or a chat model")
    try:
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
        raise TemplateError(f"the chat template refused the messages: {error}") from error
    return list(encoded)
