"""`checked_setting`: one setting that a line asks for, under the name that OpenAI's and vLLM's requests give it."""

import json
from collections.abc import Callable

from producer.column_path import kind
from schemas.errors import InputError
from schemas.sampler import SamplerConfig

SETTINGS = {
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
"""Name in a request → the run's option for it. Rows may differ in each of them."""

OWN_OPTIONS = frozenset(SETTINGS.values())
_WHOLE = ("min_tokens", "top_k", "max_tokens", "max_completion_tokens", "n", "seed")


def setting_of(option: str) -> str:
    """The name in `RowSampling` of a run's option."""
    return "n" if option == "samples" else option


def checked_setting(name: str, value: object, where: str) -> object:
    """A value as the run's option takes it, inside its interval.

    Args:
        name: a key of `SETTINGS`.
        value: as JSON has it.
        where: what messages call it, such as `body.temperature`.

    Raises:
        InputError: names the allowed interval and the received value.
    """
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise InputError(f"{where} must be text or a list of texts, none empty; received {kind(value)}")
        return tuple(texts)
    if name == "logit_bias":
        if not isinstance(value, dict):
            raise InputError(f"{where} must be an object; received {kind(value)}")
        return _inside("logit_bias", where, lambda: SamplerConfig(logit_bias=value).logit_bias)
    whole = name in _WHOLE
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InputError(f"{where} must be {'an integer' if whole else 'a number'}; received {_shown(value)}")
    number = value if whole else float(value)
    field = setting_of(SETTINGS[name])
    from schemas.row_sampling import RowSampling  # brings pyarrow, which `--help` does not need

    return _inside(field, where, lambda: getattr(RowSampling(**{field: number}), field))  # type: ignore[arg-type]  # judged there


def setting_from_cell(name: str, value: object, where: str) -> object:
    """The same for a cell of a table, whose numbers and lists may be text.

    Raises:
        InputError: as above.
    """
    if isinstance(value, str) and name != "stop":
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InputError(f"{where} must be {'an object' if name == 'logit_bias' else 'a number'}; received {value!r}") from error
    if isinstance(value, float) and name in _WHOLE and value.is_integer():
        value = int(value)  # tables turn a column of integers with gaps into floats
    return checked_setting(name, value, where)


def _inside(field: str, where: str, make: Callable[[], object]) -> object:
    try:
        return make()
    except ValueError as error:
        raise InputError(where + str(error).removeprefix(field)) from error


def _shown(value: object) -> str:
    return f"{kind(value)}, {value!r}" if isinstance(value, str | float) else kind(value)
