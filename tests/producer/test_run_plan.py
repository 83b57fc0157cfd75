import hashlib
import json
import shutil
from dataclasses import replace

import pytest

from producer.manifest_file import write_manifest
from producer.run_options import RunOptions
from producer.run_plan import head_ref, make_plan, model_ref
from schemas.errors import DecodeError, InputError, RunMismatchError, SpecmillError
from schemas.manifest import Manifest
from schemas.sampler import SamplerConfig


@pytest.fixture
def options(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(10)))
    return RunOptions(prompts, tmp_path / "out", model="scripted", shard_size=4)


def plan(options, notes=None):
    return make_plan(options, (notes if notes is not None else []).append)


def begin(options, status="running"):
    spec = plan(options).spec
    options.out.mkdir(exist_ok=True)
    write_manifest(options.out, Manifest(spec, status, {"python": "3"}, ()))
    return spec


def test_a_new_run_freezes_what_was_asked_for(options):
    notes = []
    made = plan(
        replace(options, mtp="scripted", sampler=SamplerConfig(0.5, 0.9, 7), stop=("END",), seed=3, samples=2, logprobs=True), notes
    )
    spec = made.spec
    assert (made.manifest, made.complete(options.out), spec.shards, spec.records) == (None, False, 3, 10)
    assert (spec.profile.depth, spec.profile.slots, spec.sampler.top_k, spec.stop, spec.seed) == (2, 16, 7, ("END",), 3)
    assert spec.model.digest == hashlib.sha256(b"scripted").hexdigest()
    assert notes == [f"{options.prompts}: 10 records"]
    assert not options.out.exists()


def test_two_plans_differ_in_nothing_but_the_run_id(options):
    first, second = plan(options).spec, plan(options).spec
    assert first.run_id != second.run_id
    assert first.contract() == second.contract()


def test_the_same_options_resume_under_the_same_run_id(options):
    spec = begin(options)
    resumed = plan(replace(options, workers=5))
    assert (resumed.spec, resumed.complete(options.out)) == (spec, False)
    begin(options, "complete")
    assert plan(options).complete(options.out)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "seed: 0 / 1"),
        ({"sampler": SamplerConfig(0.5)}, "sampler.temperature: 1.0 / 0.5"),
        ({"shard_size": 5}, "shard_size: 4 / 5"),
        ({"model": "scripted:seconds=1"}, "/ scripted:seconds=1 ("),
        ({"prompt_column": "id"}, "the prompts are others"),
    ],
)
def test_other_options_are_refused_with_the_differences(options, change, says):
    options.prompts.write_text("".join(json.dumps({"prompt": f"p{i}", "id": f"i{i}"}) + "\n" for i in range(10)))
    begin(options)
    with pytest.raises(RunMismatchError, match="holds a run with other settings") as caught:
        plan(replace(options, **change))
    assert says in str(caught.value)
    assert "another --out" in str(caught.value)


def test_the_same_model_under_another_name_is_the_same_run(options, tiny_llama, tmp_path):
    trunk = tiny_llama(vocab_size=300, hidden=32, layers=1, heads=4, kv_heads=2, seed=8)
    moved = tmp_path / "moved"
    shutil.copytree(trunk, moved)
    begun = begin(replace(options, model=str(trunk)))
    resumed = plan(replace(options, model=str(moved))).spec
    assert (resumed.run_id, resumed.model.name) == (begun.run_id, str(moved))
    assert resumed.contract() == begun.contract()


def test_changed_prompts_are_another_run(options):
    begin(options)
    options.prompts.write_text(options.prompts.read_text().replace("p9", "q9"))
    with pytest.raises(RunMismatchError, match="prompts_digest"):
        plan(options)


def test_a_folder_with_something_else_in_it_is_refused(options):
    options.out.mkdir()
    (options.out / ".specmill").mkdir()
    assert plan(options).manifest is None
    (options.out / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"holds 'thesis.tex' and no run"):
        plan(options)
    with pytest.raises(InputError, match="is a file"):
        plan(replace(options, out=options.prompts))


def test_a_manifest_that_cannot_be_read_is_named(options):
    options.out.mkdir()
    (options.out / "manifest.json").write_text("{")
    with pytest.raises(DecodeError, match=r"manifest.json: .*not valid JSON"):
        plan(options)


def test_bad_lines_are_counted_when_they_are_kept(options):
    options.prompts.write_text('{"prompt": "a"}\nnot json\n')
    with pytest.raises(InputError, match="line 2: not JSON"):
        plan(options)
    notes = []
    assert plan(replace(options, on_bad_input="error-row"), notes).spec.records == 2
    assert notes == [f"{options.prompts}: 2 records, 1 of them bad lines that become error rows"]


def test_plain_text_is_told_by_the_suffix(options, tmp_path):
    text = tmp_path / "prompts.TXT"
    text.write_text("first\n\nsecond\n")
    assert [record.prompt for record in plan(replace(options, prompts=text)).source.read_shard(0)] == ["first", "second"]


def test_a_value_that_only_the_spec_refuses_is_an_error_of_ours(options):
    with pytest.raises(SpecmillError, match="depth must be 0 without an MTP head; received 3"):
        plan(replace(options, depth=3))


def test_references_carry_the_digests_of_their_files(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    header = b'{"a":1}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "mtp.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    model = model_ref(str(folder), print)
    assert set(model.files) == {"config.json", "tokenizer.json", "model.safetensors", "mtp.safetensors"}
    head = head_ref(str(folder))
    assert head.files == {"mtp.safetensors": hashlib.sha256((folder / "mtp.safetensors").read_bytes()).hexdigest()}
    (folder / "config.json").write_text('{"model_type": "qwen"}')
    assert model_ref(str(folder), print).digest != model.digest
