"""The shard size that nobody asked for."""

import json
from dataclasses import replace

import pytest

from producer.manifest_file import write_manifest
from producer.run_options import RunOptions
from producer.run_plan import make_plan
from producer.shard_size import ENOUGH_SHARDS, MOST_RECORDS, default_shard_size
from schemas.errors import RunMismatchError
from schemas.manifest import Manifest


@pytest.mark.parametrize(("samples", "slots"), [(1, 16), (4, 16), (1, 1), (3, 64)])
def test_every_file_gives_several_shards_and_small_ones_give_full_batches(samples, slots):
    for records in range(2, 700):
        size = default_shard_size(records, samples, slots)
        shards = -(-records // size)
        assert 1 <= size <= MOST_RECORDS
        assert shards >= 2
        assert size == MOST_RECORDS or shards <= ENOUGH_SHARDS
        assert shards == 2 or size == MOST_RECORDS or size * samples >= slots / 2


def test_one_record_is_one_shard():
    assert default_shard_size(1, 1, 16) == 1


def test_a_small_file_gives_several_shards_and_a_resume_keeps_what_the_run_began_with(tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(40)))
    options = RunOptions(prompts, tmp_path / "out", model="scripted")
    spec = make_plan(options, lambda _: None).spec
    assert (spec.shards, spec.shard_size) == (3, 14)
    options.out.mkdir()
    begun = replace(spec, shard_size=64)  # by an earlier specmill
    write_manifest(options.out, Manifest(begun, "running", {}, ()))
    assert make_plan(options, lambda _: None).spec == begun
    with pytest.raises(RunMismatchError, match="64 / 5"):
        make_plan(replace(options, shard_size=5), lambda _: None)
