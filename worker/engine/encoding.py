"""From a request to prompt ids: the chat template applied straight to ids, so that no second BOS can slip in."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta

from schemas.errors import BadInputError, EmptyPromptError, PromptTooLongError, TemplateError
from worker.engine.completion import Request
from worker.engine.prefix_tree import common_length

NONE: Mapping[str, object] = {}
_LENGTH_WARNING = "sequence-length-is-longer-than-the-specified-maximum"  # transformers' name for it; we say ourselves what is too long
_GIVEN = frozenset(("messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token", "raise_exception", "strftime_now"))
"""What a chat template is given without being asked."""


def encode_prompt(request: Request, tokenizer: Any, *, raw: bool, template_args: Mapping[str, object] = NONE) -> list[int]:
    """The request's prompt ids.

    Args:
        request: a bare `prompt` counts as one user message, unless `raw`.
        tokenizer: mlx-lm's `TokenizerWrapper`.
        raw: encode the prompt as it stands, with the special tokens that the tokenizer itself adds.
        template_args: what the chat template is told besides the messages.

    Raises:
        BadInputError: the request was marked bad when it was read.
        TemplateError: there is no chat template, or it refused the messages.
        EmptyPromptError: the prompt encodes to nothing.
    """
    if request.bad_input is not None:
        raise BadInputError(request.bad_input)
    tokenizer.deprecation_warnings[_LENGTH_WARNING] = True
    if raw:
        if request.prompt is None:
            raise TemplateError("a record with messages needs the chat template; received --raw")
        ids = tokenizer.encode(request.prompt)
    else:
        ids = _apply_template(tokenizer, _messages(request), template_args)
    if not ids:
        raise EmptyPromptError("the prompt must encode to at least 1 token; received 0")
    return [int(token) for token in ids]


def last_message_start(request: Request, tokenizer: Any, prompt_ids: list[int], template_args: Mapping[str, object] = NONE) -> int:
    """How many of a prompt's ids stand before its last message's content, and would if that content were another.

    Args:
        request: the row's; it was encoded with the chat template.
        tokenizer: the same.
        prompt_ids: what `encode_prompt` made of it.
        template_args: with the same.
    """
    *earlier, last = _messages(request)
    try:
        others = [_apply_template(tokenizer, [*earlier, {**last, "content": content}], template_args) for content in ("a", "1")]
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


def check_bias(request: Request, vocab_size: int) -> None:
    """Refuse a row's own bias on a token that the model does not have.

    Raises:
        BadInputError: names the token.
    """
    biased = [int(token) for token in (request.sampling.logit_bias or {})] if request.sampling is not None else []
    if biased and max(biased) >= vocab_size:
        raise BadInputError(f"logit_bias must hold tokens in [0, {vocab_size}); received {max(biased)}")


def _messages(request: Request) -> list[Any]:
    return request.messages if request.messages is not None else [{"role": "user", "content": request.prompt}]


def _apply_template(tokenizer: Any, messages: list[Any], arguments: Mapping[str, object]) -> list[int]:
    if not tokenizer.has_chat_template:
        raise TemplateError("the model's tokenizer has no chat template; use --raw, or a chat model")
    unknown = sorted(set(arguments) - _variables(tokenizer.chat_template)) if arguments else []
    if unknown:
        known = ", ".join(sorted(_variables(tokenizer.chat_template) - _GIVEN))
        raise TemplateError(f"the chat template reads no argument {unknown[0]!r}; it reads {known or 'none'}")
    try:
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False, **arguments)
    except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
        raise TemplateError(f"the chat template refused the messages: {error}") from error
    return list(encoded)


@lru_cache(maxsize=8)
def _variables(template: str | None) -> frozenset[str]:
    """The names that a chat template reads and does not set itself."""
    return frozenset(
        jinja2.meta.find_undeclared_variables(jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template or ""))
    )
