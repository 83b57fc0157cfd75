"""`TrainingData`: the rows that a head is trained on, out of datasets or a file of token ids."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from producer.counted import counted
from producer.dataset import Dataset, blob_of
from schemas.errors import InputError
from schemas.row_sampling import SAMPLER_FIELDS
from schemas.sampler import SamplerConfig
from worker.distill.corpus import Corpus, TokenSequence, make_corpus, read_token_pairs, sequences_of_rows
from worker.engine.trunk import Trunk

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Sequences and where they come from.

    Attributes:
        corpus: the sequences.
        temperature: at which all rows were drawn, where that is one and nothing else shaped the distribution; else None.
        labels: per sequence, the text of the column that was asked for, else empty.
    """

    corpus: Corpus
    temperature: float | None
    labels: tuple[str, ...]


def read_training_data(
    sources: Sequence[Path],
    trunk: Trunk,
    model_files: dict[str, str],
    context: int,
    report: Callable[[str], None],
    by: str | None = None,
) -> TrainingData:
    """Read every source.

    Args:
        sources: dataset folders of `specmill run`, or JSON-lines files of token ids.
        trunk: the model that is to be drafted for.
        model_files: file name → digest of its folder.
        context: most tokens of a sequence.
        report: receives one line per thing to know.
        by: a column of the datasets that labels their rows.

    Raises:
        InputError: a source that is neither, nothing to learn from, or no such column.
    """
    sequences: list[list[TokenSequence | None]] = []
    samplers: list[SamplerConfig | None] = []
    labels: list[str] = []
    for source in sources:
        mine: list[TokenSequence | None] = []
        if source.is_dir():
            dataset = Dataset.open(source)
            _check_model(dataset, source, model_files, report)
            spec = dataset.manifest.spec
            samplers.append(None if set(SAMPLER_FIELDS) & set(spec.per_row) else spec.sampler)
            for shard in dataset.manifest.shards:
                rows = dataset.table(shard)
                blob = blob_of(rows).append_column("token_ids", rows.column("token_ids").combine_chunks())
                mine += sequences_of_rows(dataset.manifest.spec, blob, trunk.tokenizer, context=context)
                labels += _labels(rows, by, source)
        else:
            _check_token_file(source)
            samplers.append(None)
            mine = read_token_pairs(source, trunk.vocab_size, context=context)
            labels += [""] * len(mine)
        sequences.append(mine)
    corpus = make_corpus(*sequences)
    learned = f"{counted(len(corpus.sequences), 'row')} with {counted(corpus.answer_tokens, 'answer token')}"
    report(f"{learned}; {corpus.skipped:,} left out (failed or too short)")
    kept = tuple(label for label, sequence in zip(labels, chain.from_iterable(sequences), strict=True) if sequence is not None)
    return TrainingData(corpus, _temperature(samplers), kept)


def _labels(rows: pa.Table, by: str | None, source: Path) -> list[str]:
    if by is None:
        return [""] * rows.num_rows
    if by not in rows.column_names:
        raise InputError(f"{source} has no column {by!r}; it has {', '.join(rows.column_names)}")
    return [str(value) for value in rows.column(by).to_pylist()]


def _temperature(samplers: Sequence[SamplerConfig | None]) -> float | None:
    first = samplers[0]
    if first is None or any(sampler != first for sampler in samplers):
        return None
    temperature = max(first.temperature, 0.0)
    return temperature if first == SamplerConfig(temperature=first.temperature) else None


def _check_model(dataset: Dataset, source: Path, model_files: dict[str, str], report: Callable[[str], None]) -> None:
    theirs = dataset.manifest.spec.model.files
    if theirs == model_files:
        return
    if theirs.get(TOKENIZER) != model_files.get(TOKENIZER):
        raise InputError(f"{source} was made by {dataset.manifest.spec.model.name}, whose tokens are not those of --model")
    report(f"note: {source} was made by another model ({dataset.manifest.spec.model.name}); a head learns best from its own model's rows")


def _check_token_file(source: Path) -> None:
    """Refuse a prompts file, and say what to do with it."""
    try:
        with gzip.open(source, "rt") if source.suffix == ".gz" else source.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
        known = isinstance(first, dict) and {"p", "g"} <= set(first)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error}") from error
    except ValueError:
        known = False
    if not known:
        raise InputError(
            f"{source} holds prompts, and a head learns from the model's own answers: make them first with "
            f"`specmill run {source} --out DIR --temperature 1.0`, then give DIR to `specmill distill`"
        )
