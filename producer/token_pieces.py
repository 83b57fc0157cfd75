"""What each token of a completion adds to its text, where the model's tokenizer is on this machine."""

from collections.abc import Sequence

from schemas.errors import ModelError
from worker.engine.model_store import resolve_model
from worker.engine.scripted import is_scripted


def token_pieces(model: str, token_ids: Sequence[int], *, trust_remote_code: bool = False) -> list[str] | None:
    """One piece of text per token; joined they are the text of all of them, the stop token's name included.

    Args:
        model: as the manifest names it; it is never fetched for this.
        token_ids: the completion's tokens.
        trust_remote_code: as in `load_tokenizer`.

    Returns:
        None where the tokenizer is not here.

    Raises:
        ModelError: it is here and cannot be loaded, or only with code of its own.
    """
    if is_scripted(model):
        return None
    try:
        folder = resolve_model(model, offline=True)
    except ModelError:
        return None
    from worker.engine.model_loading import load_tokenizer

    detokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code).detokenizer
    pieces: list[str] = []
    before = 0
    for token in token_ids:
        detokenizer.add_token(token)
        pieces.append(detokenizer.text[before:])
        before = len(detokenizer.text)
    detokenizer.finalize()
    if pieces:
        pieces[-1] += detokenizer.text[before:]
    return pieces
