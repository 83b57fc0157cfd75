import math
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producer.dataset_card import dataset_card, write_card
from producer.run_options import RunOptions
from producer.run_summary import RunSummary
from schemas.manifest import Manifest, ShardRecord
from schemas.profile import Backend, ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from schemas.tables import blob_schema, row_schema
from worker.engine import blas

BACKEND = Backend("cpu", "Zen", "0.32.4", "openblas", True)


def row(index, *, drafted=(4, 2), accepted=(3, 1), expected=3.5, variance=0.75, error=None):
    acceptance = {
        "cycles": 4,
        "drafted": sum(drafted),
        "accepted": sum(accepted),
        "residual": 1,
        "bonus": 1,
        "drafted_by_depth": list(drafted),
        "accepted_by_depth": list(accepted),
        "expected_accepted": expected,
        "accepted_variance": variance,
    }
    return {
        "record_id": f"r{index}",
        "row": index,
        "sample": 0,
        "prompt": "p",
        "completion": "" if error else "text",
        "token_ids": [] if error else [1] * 8,
        "finish_reason": "error" if error else "stop",
        "error": error and {"type": error, "message": "line one\nline two"},
        "prompt_tokens": 0 if error else 5,
        "completion_tokens": 0 if error else 8,
        "seed": index,
        "acceptance": acceptance,
        "logprob_sum": -1.0,
    }


@pytest.fixture
def dataset(tmp_path):
    """Write part files of given rows and return the folder and its manifest."""

    def write(*parts, depth=2, stop=(), name="m"):
        schema = row_schema(blob_schema(prompt=True, messages=False, own=[]), logprobs=False)
        (tmp_path / "data").mkdir()
        records = []
        for shard, rows in enumerate(parts):
            file = f"data/part-{shard:05}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / file)
            records.append(ShardRecord(shard, file, len(rows), sum(r["error"] is not None for r in rows), "d", BACKEND))
        spec = RunSpec(
            run_id="r",
            model=ModelRef(name, "abc", {}),
            head=ModelRef("h.safetensors", "def", {}) if depth else None,
            sampler=SamplerConfig(0.7, 0.95),
            max_tokens=8,
            stop=stop,
            samples=1,
            seed=9,
            coupling="rejection",
            profile=ExecutionProfile(depth=depth),
            raw=False,
            logprobs=False,
            shard_size=2,
            records=sum(map(len, parts)),
            prompts_digest="0" * 64,
        )
        return tmp_path, Manifest(spec, "complete", {"mlx": "0.32.4"}, tuple(records))

    return write


def test_a_dataset_is_counted_from_its_part_files(dataset):
    out, manifest = dataset(
        [row(0), row(1, drafted=(4, 0), accepted=(2, 0))], [row(2, drafted=(1,), accepted=(0,)), row(3, error="EmptyPromptError")]
    )
    summary = RunSummary.of_dataset(out, manifest)
    assert (summary.files, summary.rows, summary.failed, dict(summary.failures)) == (2, 4, 1, {"EmptyPromptError": 1})
    assert (summary.prompt_tokens, summary.completion_tokens, summary.cycles) == (15, 24, 16)
    assert summary.drafted_by_depth == [4 + 4 + 1 + 4, 2 + 0 + 2]
    assert summary.accepted_by_depth == [3 + 2 + 0 + 3, 1 + 0 + 1]
    assert summary.z == pytest.approx((8 + 2 - 4 * 3.5) / math.sqrt(4 * 0.75))
    assert summary.finish_reasons == {"stop": 3, "error": 1}
    assert summary.first_failures == ["r3: EmptyPromptError: line one line two"]


def test_the_text_says_what_failed_and_how_to_load_it(dataset):
    out, manifest = dataset([row(i, error="TemplateError") for i in range(9)] + [row(9)])
    summary = RunSummary.of_dataset(out, manifest)
    summary.warnings = ["column 'x' is kept as JSON text"]
    summary.seconds, summary.tokens_per_second = 75.0, 0.106
    text = summary.text()
    assert "1 row ok, 9 failed" in text
    assert "TemplateError 9" in text
    assert "r4: TemplateError" in text
    assert "r5: TemplateError" not in text
    assert "… and 4 more" in text
    assert "0.1 generated tok/s of all workers together, from the first token on; the session took 1 min 15 s" in text
    assert "note        column 'x'" in text
    assert f"pandas.read_parquet('{out / 'data'}')" in text


def test_a_slow_blas_is_remembered_to_the_end(dataset):
    out, manifest = dataset([row(0)], [row(1)])
    assert "BLAS" not in RunSummary.of_dataset(out, manifest).text()
    slow = replace(manifest.shards[0], backend=replace(BACKEND, blas=blas.REFERENCE))
    text = RunSummary.of_dataset(out, replace(manifest, shards=(slow, manifest.shards[1]))).text()
    assert "note        1 of 2 shards were computed on MLX's reference BLAS" in text
    assert "apt-get install libopenblas0-pthread" in text


@pytest.mark.parametrize(("accepted", "verdict"), [((3, 1), "as exact sampling expects"), ((4, 2), "the engine is broken")])
def test_calibration_is_judged_at_five_standard_deviations(dataset, accepted, verdict):
    out, manifest = dataset([row(i, accepted=accepted, expected=4.0, variance=0.75) for i in range(20)])
    assert verdict in RunSummary.of_dataset(out, manifest).text()


def test_without_drafts_nothing_is_said_of_acceptance(dataset):
    out, manifest = dataset([row(0, drafted=(), accepted=(), expected=0.0, variance=0.0)], depth=0)
    summary = RunSummary.of_dataset(out, manifest)
    assert (summary.z, summary.acceptance_by_depth) == (None, [])
    assert "acceptance" not in summary.text()
    assert "none (plain autoregressive decoding)" in dataset_card(manifest, summary, "c")


def test_a_drafter_that_proposed_nothing_is_said_to_have_drafted_nothing(dataset):
    out, manifest = dataset([row(0, drafted=(0, 0), accepted=(0, 0), expected=0.0, variance=0.0)])
    summary = RunSummary.of_dataset(out, manifest)
    assert "  acceptance  nothing was drafted, 2.00 tokens per cycle" in summary.text().splitlines()
    assert "| acceptance by depth | nothing was drafted |" in dataset_card(manifest, summary, "c")


def test_the_card_describes_the_dataset_and_how_to_make_it_again(dataset, tmp_path):
    out, manifest = dataset([row(0), row(1, error="EmptyPromptError")], stop=("a|b\n",))
    summary = RunSummary.of_dataset(out, manifest)
    command = RunOptions(tmp_path / "my prompts.jsonl", out, prompt_column="turns[0]", on_bad_input="error-row").command(manifest.spec)
    card = dataset_card(manifest, summary, command)
    front, _, body = card.removeprefix("---\n").partition("---\n")
    assert front == (
        "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*.parquet\n"
        "size_categories:\n- n<1K\ntags:\n- synthetic\n- specmill\n"
    )
    for text in (
        "EmptyPromptError 1",
        "sha256:abc",
        "h.safetensors",
        "temperature 0.7, top-p 0.95, top-k 0",
        "16 slots, depth 2, float32",
        "Zen (cpu, mlx 0.32.4, openblas)",
    ):
        assert text in body
    assert r"a\|b\n" in body
    assert f"specmill run '{tmp_path}/my prompts.jsonl' --out {out} --model m --mtp h.safetensors --temperature 0.7 --top-p 0.95" in body
    assert "--stop 'a|b\n'" in body
    assert "--prompt-column 'turns[0]' --on-bad-input error-row" in body
    write_card(out / "README.md", card)
    write_card(out / "README.md", card)
    assert (out / "README.md").read_text() == card
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == ["README.md"]
