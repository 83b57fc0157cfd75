"""Rows become sequences: the prompt as the engine reads it, the tokens as the row holds them; splits keep records together."""

import gzip
import json

import numpy as np
import pytest
from scripted_dataset import make_dataset

from producer.dataset import Dataset
from producer.training_data import read_training_data
from schemas.errors import InputError
from schemas.sampler import SamplerConfig
from worker.distill.corpus import make_corpus, make_sequence, read_token_pairs
from worker.distill.draft_vocabulary import draft_ids, ranked_ids
from worker.distill.hidden_states import HiddenStates


def notes(_text: str) -> None:
    pass


def test_a_dataset_is_read_as_the_engine_read_it(distilled_trunk, tmp_path):
    lines = [{"prompt": f"prompt {i}"} for i in range(9)]
    out = make_dataset(tmp_path, lines, samples=2, max_tokens=12, sampler=SamplerConfig(temperature=0.7))
    data = read_training_data([out], distilled_trunk, {}, 512, notes)
    rows = [row for shard in Dataset.open(out).manifest.shards for row in Dataset.open(out).table(shard).to_pylist()]
    assert len(data.corpus.sequences) + data.corpus.skipped == len(rows) == 18
    assert data.temperature == 0.7
    kept = [row for row in rows if len(row["token_ids"]) >= 2]
    for row, sequence in zip(kept, data.corpus.sequences, strict=True):
        messages = [{"role": "user", "content": row["prompt"]}]
        prompt = distilled_trunk.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert sequence.ids.tolist() == [*prompt, *row["token_ids"]]
        assert (sequence.record, sequence.prompt_tokens) == (row["record_id"], len(prompt))


def test_filters_and_several_samplers_leave_no_single_temperature(distilled_trunk, tmp_path):
    outs = []
    for name, sampler in (("a", SamplerConfig(temperature=0.7)), ("b", SamplerConfig(temperature=0.7, top_p=0.9))):
        (tmp_path / name).mkdir()
        outs.append(make_dataset(tmp_path / name, [{"prompt": "p"}] * 3, max_tokens=12, sampler=sampler))
    assert read_training_data(outs[1:], distilled_trunk, {}, 512, notes).temperature is None
    both = read_training_data(outs, distilled_trunk, {}, 512, notes)
    assert (both.temperature, len(both.corpus.sequences) + both.corpus.skipped) == (None, 6)


def test_pairs_of_ids_plain_or_packed(tmp_path):
    lines = [{"p": [1, 2, 3], "g": [4, 5, 6]}, {"p": [1, 2, 3], "g": [7, 8]}, {"p": [9], "g": [1, 2, 3]}, {"p": [4, 5], "g": [6]}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "a.jsonl").write_text(text)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(text)
    corpus = make_corpus(read_token_pairs(tmp_path / "a.jsonl", 10, context=5))
    assert corpus.digest == make_corpus(read_token_pairs(tmp_path / "a.jsonl.gz", 10, context=5)).digest
    assert [sequence.ids.tolist() for sequence in corpus.sequences] == [[1, 2, 3, 4, 5], [1, 2, 3, 7, 8], [9, 1, 2, 3]]
    assert [sequence.prompt_tokens for sequence in corpus.sequences] == [3, 3, 2]
    assert (corpus.skipped, len({sequence.record for sequence in corpus.sequences})) == (1, 2)
    with pytest.raises(InputError, match=r"line 1: ids must be in \[0, 5\]"):
        read_token_pairs(tmp_path / "a.jsonl", 6, context=5)
    (tmp_path / "a.jsonl").write_text("[]\n")
    with pytest.raises(InputError, match="line 1: must be"):
        read_token_pairs(tmp_path / "a.jsonl", 10, context=5)
    with pytest.raises(InputError, match="nothing to learn from"):
        make_corpus([None])


def test_a_split_keeps_records_together_and_depends_on_the_seed(own_rows):
    train, held = own_rows.split(0.2, 0)
    assert sorted(train + held) == list(range(len(own_rows.sequences)))
    sides = [{own_rows.sequences[i].record for i in side} for side in (train, held)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == 12
    assert own_rows.split(0.2, 0) == (train, held)
    assert own_rows.split(0.2, 1) != (train, held)
    with pytest.raises(InputError, match="at least 2 records"):
        make_corpus([make_sequence("only", [1, 2], [3, 4], context=9)]).split(0.1, 0)


def test_the_draft_vocabulary_goes_by_frequency_in_the_answers():
    sequences = [make_sequence("a", [9, 9, 9], [4, 4, 4, 7, 7, 1], context=99)]
    ranked = ranked_ids(sequences, 10)
    assert ranked.tolist() == [4, 7, 1, 0, 2, 3, 5, 6, 8, 9]
    assert draft_ids(ranked, 3).tolist() == [1, 4, 7]
    assert draft_ids(ranked, 0) is None
    assert draft_ids(ranked, 10) is None


def test_reading_goes_on_where_it_stopped(own_rows, filled_cache, distilled_trunk, tmp_path):
    asked = 0

    def stop_at_the_second_pass() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    seen: list[int] = []
    first = HiddenStates.beneath(tmp_path, own_rows, distilled_trunk, "digest", "float32")
    assert not first.fill(distilled_trunk, seen.append, stop_at_the_second_pass)
    second = HiddenStates.beneath(tmp_path, own_rows, distilled_trunk, "digest", "float32")
    after: list[int] = []
    assert second.fill(distilled_trunk, after.append, lambda: False)
    assert 0 < seen[-1] < after[0] <= after[-1] == own_rows_positions(own_rows)
    for index in range(0, len(own_rows.sequences), 7):
        np.testing.assert_array_equal(second.hidden(index), filled_cache.hidden(index))
        np.testing.assert_array_equal(second.log_z(index), filled_cache.log_z(index))


def test_a_source_that_joins_later_is_read_alone(own_rows, filled_cache, distilled_trunk, tmp_path):
    halves = own_rows.sequences[:9], own_rows.sequences[9:]
    alone = HiddenStates.beneath(tmp_path, make_corpus(halves[0]), distilled_trunk, "digest", "float32")
    assert alone.fill(distilled_trunk, lambda done: None, lambda: False)
    seen: list[int] = []
    both = HiddenStates.beneath(tmp_path, make_corpus(halves[0], [], halves[1]), distilled_trunk, "digest", "float32")
    assert both.fill(distilled_trunk, seen.append, lambda: False)
    assert alone.positions < seen[0] <= seen[-1] == both.positions == filled_cache.positions
    assert both.bytes == filled_cache.bytes
    for index, sequence in enumerate(own_rows.sequences):
        assert both.hidden(index).shape[0] == sequence.read
        np.testing.assert_allclose(both.log_z(index), filled_cache.log_z(index), atol=1e-4)


def own_rows_positions(corpus) -> int:
    return sum(sequence.read for sequence in corpus.sequences)
