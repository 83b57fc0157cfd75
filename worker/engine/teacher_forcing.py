"""Teacher forcing: one forward pass over a prompt and its stored completion says what the target thinks of every stored token.

The pass runs over one row in order, without cohort, drafts or rollback, so it also checks those. Samples of one prompt share the reading of
it. What follows from the tokens alone (text, finish reason) is replayed by the same `Row` that decoding uses.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pyarrow as pa

from sampling.batched import BatchedSampler
from sampling.scoring import TokenScores, score_tokens
from schemas.errors import RowError
from schemas.run_spec import RunSpec
from schemas.scores import SCORES
from worker.engine.completion import Request, requests_from_blob
from worker.engine.encoding import check_bias, check_length, encode_prompt
from worker.engine.layer_cache import LayerCache
from worker.engine.row import Row
from worker.engine.row_mask import RowMask
from worker.engine.rules import Rules
from worker.engine.trunk import Trunk

POSITIONS = 128  # scored at once: bounds the logits in memory to 128 × V float32, 125 MB at V = 248,320


def score_rows(trunk: Trunk, rules: Rules, spec: RunSpec, rows: pa.Table, on_row: Callable[[], None]) -> pa.Table:
    """Score rows one by one.

    Args:
        trunk: the target.
        rules: of that target.
        spec: sampler, budget, stop strings and how prompts are encoded.
        rows: a blob with `sample` and `token_ids`.
        on_row: called before every row.

    Returns:
        A table of `SCORES`, in the order of the rows.
    """
    scored: list[dict[str, Any]] = []
    prompt = _ReadPrompt(trunk, spec.profile.prefill_chunk)
    for request, token_ids in zip(requests_from_blob(rows, spec), rows.column("token_ids").to_pylist(), strict=True):
        on_row()
        try:
            scored.append(_score_row(trunk, rules, spec, request, token_ids or [], prompt))
        except RowError as error:
            scored.append({"error": {"type": type(error).__name__, "message": str(error)}})
    return pa.Table.from_pylist(scored, schema=SCORES)


class _ReadPrompt:
    """The prompt that was read last; the next row often has the same."""

    def __init__(self, trunk: Trunk, chunk: int) -> None:
        self._trunk = trunk
        self._chunk = chunk
        self._ids: list[int] = []
        self._caches: list[LayerCache] = []

    def read(self, ids: list[int], completion: list[int]) -> mx.array:
        """Hidden states before the final norm, [T, D], at the T positions that say what the T ≥ 1 tokens of a completion should be."""
        if ids != self._ids:
            self._caches = self._trunk.make_caches(capacity=len(ids))
            self._last = self._trunk.read_on(ids, self._chunk, self._caches, 0)[-1:]
            self._ids = ids
        if len(completion) == 1:
            return self._last
        caches = [cache.fork(len(ids) + len(completion)) for cache in self._caches]
        return mx.concatenate([self._last, self._trunk.read_on(completion[:-1], self._chunk, caches, len(ids))])


def _score_row(
    trunk: Trunk, rules: Rules, spec: RunSpec, request: Request, token_ids: Sequence[int], prompt: _ReadPrompt
) -> dict[str, Any]:
    prompt_ids = encode_prompt(request, trunk.tokenizer, raw=spec.raw, template_args=spec.template_args)
    capacity = spec.profile.capacities[-1]
    own = request.own(spec)
    check_length(len(prompt_ids), own.max_tokens, min(trunk.context or capacity, capacity - spec.profile.depth - 1))
    check_bias(request, trunk.vocab_size)
    sampler = BatchedSampler(own.sampler, trunk.vocab_size, end_ids=sorted(trunk.eos_ids))
    if any(not 0 <= token < trunk.vocab_size for token in token_ids):
        raise RowError(f"token ids must be in [0, {trunk.vocab_size - 1}]; received {min(token_ids)} to {max(token_ids)}")
    tokens = np.array(token_ids, dtype=np.int64)
    mask = rules.mask(spec, prompt_ids)
    parts = _score_tokens(trunk, sampler, prompt.read(prompt_ids, tokens.tolist()), prompt_ids, tokens, mask) if len(tokens) else []
    logprobs = np.concatenate([part.logprobs for part in parts]) if parts else np.zeros(0)
    possible = [np.isfinite(part.logprobs) for part in parts]
    surprises = [part.logprobs[kept] - part.expected[kept] for part, kept in zip(parts, possible, strict=True)]
    row = Row(
        request,
        prompt_ids,
        max_tokens=own.max_tokens,
        stop=own.stop,
        tokenizer=trunk.tokenizer,
        depth=0,
        ignore_eos=spec.ignore_eos,
        mask=rules.mask(spec, prompt_ids),
    )
    used = 0
    for token, logprob in zip(token_ids, logprobs.tolist(), strict=True):
        row.commit([token], [logprob], [])
        used += 1
        if row.finish_reason is not None:
            break
    ended = row.completion() if row.finish_reason is not None else None
    return {
        "prompt_tokens": len(prompt_ids),
        "completion": ended.text if ended is not None else None,
        "finish_reason": ended.finish_reason if ended is not None else None,
        "tokens_used": used,
        "logprobs": logprobs.tolist(),
        "shortfall": [value for part in parts for value in part.shortfall.tolist()],
        "surprise": float(sum(surprise.sum() for surprise in surprises)),
        "surprise_variance": float(sum(part.variance[kept].sum() for part, kept in zip(parts, possible, strict=True))),
    }


def _score_tokens(
    trunk: Trunk, sampler: BatchedSampler, hidden: mx.array, prompt_ids: list[int], tokens: np.ndarray, mask: RowMask | None
) -> list[TokenScores]:
    """Scores of a completion of T tokens, in parts of at most POSITIONS; `hidden` [T, D] are the states that they were drawn from."""
    parts = []
    for start in range(0, len(tokens), POSITIONS):
        end = min(start + POSITIONS, len(tokens))
        logits = trunk.logits(trunk.norm(hidden[start:end]))
        parts.append(score_tokens(sampler, logits, tokens[start:end], Counter(tokens[:start].tolist()), prompt_ids, mask))
        if mask is not None and not all(mask.commit(token) for token in tokens[start:end].tolist()):
            mask = None  # behind a token that may not stand there, only the model itself can be asked
    return parts
