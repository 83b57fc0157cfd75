"""Where each token of a row came from, found by decoding the row again, in the open, with the model and the head on this machine."""

from dataclasses import replace
from typing import Any

from schemas.errors import ModelError
from schemas.row_sampling import RowSampling
from schemas.run_spec import RunSpec
from worker.engine import blas
from worker.engine.completion import Request
from worker.engine.scripted import is_scripted

ORIGINS = ("accepted", "residual", "bonus")


def token_origins(spec: RunSpec, row: dict[str, Any], *, trust_remote_code: bool = False) -> list[str]:
    """One of `ORIGINS` per token of a dataset row.

    Args:
        spec: the dataset's.
        row: a dataset row without an error.
        trust_remote_code: as in `MTPEngine.load`.

    Raises:
        ModelError, HeadError: they are not on this machine, or are others than the dataset's; or this machine decodes the row to other
            tokens; or the run drafted in a way that cannot be decoded in the open.
    """
    if is_scripted(spec.model.name):
        raise ModelError("a scripted row has no tokens of a model")
    blas.prepare()
    from worker.engine.mtp_engine import MTPEngine
    from worker.engine.session import Session

    alone = replace(spec, profile=replace(spec.profile, slots=1))
    own = RowSampling.of_column(row.get("sampling"))
    request = Request(0, row["sample"], row["seed"], row.get("prompt"), row.get("messages"), None, own)
    try:
        session = Session(MTPEngine.load(alone, trust_remote_code=trust_remote_code), alone, request)
    except ValueError as error:
        raise ModelError(f"the tokens of this run cannot be coloured: {error}") from error
    origins: list[str] = []
    accepted = 0
    while session.finish_reason is None:
        if session.verify_one_token().accepted:
            origins.append("accepted")
            accepted += 1
        else:
            origins.append("bonus" if accepted == spec.profile.depth else "residual")
            accepted = 0
    if session.token_ids != row["token_ids"]:
        raise ModelError(
            "this machine decodes the row to other tokens, so nothing can be said of the dataset's (specmill verify says more)"
        )
    return origins[: len(session.token_ids)]  # behind a stop token, what was decided was dropped
