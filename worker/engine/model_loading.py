"""`loading` and `load_tokenizer`: folders in mlx-lm's layout, whose own code runs only where that is trusted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlx_lm import utils

from schemas.errors import ModelError


@contextlib.contextmanager
def loading(folder: Path, *, trust_remote_code: bool) -> Iterator[None]:
    """Say in our words what stops mlx-lm from loading something out of `folder`.

    Raises:
        ModelError: it cannot be loaded, or only with code of its own.
    """
    try:
        yield
    except (ValueError, OSError, KeyError, TypeError, ImportError, AttributeError) as error:
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise ModelError(f"{folder} comes with code of its own, which runs only with --trust-remote-code: {error}") from error
        raise ModelError(f"{folder} cannot be loaded as a model: {error}") from error


def load_tokenizer(folder: Path, *, trust_remote_code: bool, eos_token_ids: Any = None) -> Any:
    """mlx-lm's `TokenizerWrapper` of a model folder; `eos_token_ids` as its config names them, where they are at hand.

    Raises:
        ModelError: as `loading`.
    """
    with loading(folder, trust_remote_code=trust_remote_code):
        # Said in so many words: a tokenizer that is left to ask would ask on our own pipe.
        return utils.load_tokenizer(folder, {"trust_remote_code": trust_remote_code}, eos_token_ids=eos_token_ids)
