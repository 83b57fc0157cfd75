"""`Corpus`: the token sequences a head learns from, each a prompt and the answer to it."""

import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import InputError, RowError
from schemas.run_spec import RunSpec
from worker.engine.completion import requests_from_blob
from worker.engine.encoding import encode_prompt

SHORTEST_PROMPT = 2  # the first chain starts at the last prompt token but one


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """One text.

    Attributes:
        record: what the held-out split goes by; samples of one prompt share it.
        ids: prompt and answer, [L] int32.
        prompt_tokens: P, ids of the prompt, ≥ 2 and < L.
    """

    record: str
    ids: NDArray[np.int32]
    prompt_tokens: int

    @property
    def read(self) -> int:
        """Positions that the trunk reads: all but the last."""
        return len(self.ids) - 1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sequences in a fixed order.

    Attributes:
        sequences: at least one of them.
        ends: behind the last sequence of each source, in order.
        skipped: rows that hold nothing to learn from: failed, or with an empty answer.
    """

    sequences: tuple[TokenSequence, ...]
    ends: tuple[int, ...]
    skipped: int = 0

    @property
    def sources(self) -> tuple["Corpus", ...]:
        """A corpus of each source that holds something."""
        bounds = pairwise([0, *self.ends])
        return tuple(Corpus(self.sequences[start:end], (end - start,)) for start, end in bounds if end > start)

    @property
    def digest(self) -> str:
        """sha256 hex over records, prompt lengths and ids."""
        digest = hashlib.sha256()
        for sequence in self.sequences:
            digest.update(f"{sequence.record}\0{sequence.prompt_tokens}\0{len(sequence.ids)}\n".encode("utf-8", "surrogatepass"))
            digest.update(sequence.ids.astype("<i4").tobytes())
        return digest.hexdigest()

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(sequence.ids) - sequence.prompt_tokens for sequence in self.sequences)

    def split(self, held_out: float, seed: int) -> tuple[list[int], list[int]]:
        """Indices to train on and indices held out; all sequences of one record are on the same side.

        Args:
            held_out: share of the records, in (0, 1).
            seed: of the choice.

        Raises:
            InputError: fewer than two records.
        """
        records = sorted({sequence.record for sequence in self.sequences}, key=lambda record: _rank(seed, record))
        if len(records) < 2:
            raise InputError(f"a head needs at least 2 records, one of them to be held out; received {len(records)}")
        held = set(records[: min(max(1, round(held_out * len(records))), len(records) - 1)])
        return (
            [i for i, sequence in enumerate(self.sequences) if sequence.record not in held],
            [i for i, sequence in enumerate(self.sequences) if sequence.record in held],
        )


def sequences_of_rows(spec: RunSpec, rows: pa.Table, tokenizer: Any, *, context: int) -> list[TokenSequence | None]:
    """The sequences of dataset rows; None for a row that holds nothing to learn from.

    Args:
        spec: the run that made them; says how prompts are encoded.
        rows: a blob (`producer.dataset.blob_of`) with `token_ids` beside it.
        tokenizer: mlx-lm's `TokenizerWrapper`.
        context: most tokens of a sequence; longer ones are cut at the end.
    """
    sequences: list[TokenSequence | None] = []
    records, answers = rows.column("record_id").to_pylist(), rows.column("token_ids").to_pylist()
    for request, record, answer in zip(requests_from_blob(rows, spec), records, answers, strict=True):
        try:
            prompt = encode_prompt(request, tokenizer, raw=spec.raw, template_args=spec.template_args) if answer else []
        except RowError:
            prompt = []
        sequences.append(make_sequence(record, prompt, answer or [], context=context) if prompt else None)
    return sequences


def read_token_pairs(path: Path, vocab_size: int, *, context: int) -> list[TokenSequence | None]:
    """The sequences of a JSON-lines file of ids, `{"p": [prompt ids], "g": [answer ids]}`, plain or gzip.

    Raises:
        InputError: a line of another form, or an id outside the vocabulary.
    """
    sequences: list[TokenSequence | None] = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                pair = json.loads(line)
                prompt, answer = [int(token) for token in pair["p"]], [int(token) for token in pair["g"]]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f'{path}, line {number}: must be {{"p": [ids], "g": [ids]}} ({error!r})') from error
            if any(not 0 <= token < vocab_size for token in prompt + answer):
                raise InputError(f"{path}, line {number}: ids must be in [0, {vocab_size - 1}]")
            # Several answers to one prompt are one record.
            sequences.append(make_sequence(hashlib.sha256(str(prompt).encode()).hexdigest(), prompt, answer, context=context))
    return sequences


def make_corpus(*sources: Iterable[TokenSequence | None]) -> Corpus:
    """A corpus of the sequences of some sources that are not None.

    Raises:
        InputError: there are none.
    """
    given, ends = 0, []
    kept: list[TokenSequence] = []
    for source in sources:
        for sequence in source:
            given += 1
            if sequence is not None:
                kept.append(sequence)
        ends.append(len(kept))
    if not kept:
        raise InputError(f"there is nothing to learn from: none of {given} rows has an answer of 2 tokens or more")
    return Corpus(tuple(kept), tuple(ends), given - len(kept))


def make_sequence(record: str, prompt: Sequence[int], answer: Sequence[int], *, context: int) -> TokenSequence | None:
    """One sequence, cut to `context` tokens, or None when fewer than two tokens are left behind its prompt."""
    ids = np.array([*prompt, *answer], dtype=np.int32)[:context]
    prompt_tokens = max(len(prompt), SHORTEST_PROMPT)
    return TokenSequence(record, ids, prompt_tokens) if len(ids) - prompt_tokens >= 2 else None


def _rank(seed: int, record: str) -> bytes:
    return hashlib.blake2b(record.encode("utf-8", "surrogatepass"), key=seed.to_bytes(8, "little"), digest_size=16).digest()
