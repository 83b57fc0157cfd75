"""`specmill model acceptance`: any head on any rows, as a whole and by a column."""

import json

import numpy as np
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from scripted_dataset import make_dataset

from producer.cli import main
from schemas.manifest import Manifest
from worker.engine.head_contract import HeadContract


def specmill(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_rows_are_judged_together_and_by_a_column(own_cache, distilled_model, tiny_head, tmp_path):
    lines = [{"prompt": f"prompt {i}", "category": "ab"[i % 2]} for i in range(8)]
    out = make_dataset(tmp_path, lines, max_tokens=12)
    as_if_by_the_model(out, distilled_model)
    head = tiny_head(distilled_model, seed=2)
    result = specmill("model", "acceptance", head, out, "--model", distilled_model, "--by", "category", "--depth", 2)
    assert result.exit_code == 0, result.output
    titles = [line.split(":")[0] for line in result.stdout.splitlines() if "positions" in line]
    assert titles == ["all rows", "category = a", "category = b"]
    assert result.stdout.count("T = 0.6") == 3
    assert "decoding these rows at T = 1 would take a cycle per" in result.stdout
    refused = specmill("model", "acceptance", head, out, "--model", distilled_model, "--by", "topic")
    assert (refused.exit_code, "has no column 'topic'" in refused.stderr) == (1, True)


def test_a_head_that_reads_before_the_norm_is_refused(own_cache, distilled_model, tiny_head, tmp_path):
    out = make_dataset(tmp_path, [{"prompt": "p"}], max_tokens=12)
    save_file(
        load_file(tiny_head(distilled_model, seed=2)),
        tmp_path / "pre.safetensors",
        metadata={"contract": HeadContract(base_hidden="pre_norm").to_json()},
    )
    result = specmill("model", "acceptance", tmp_path / "pre.safetensors", out, "--model", distilled_model)
    assert (result.exit_code, "before the final norm" in result.stderr) == (1, True)


def as_if_by_the_model(out, model):
    """The scripted dataset with tokens of the model's vocabulary, under the model's name."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from engine_support import model_ref

    path = out / "manifest.json"
    spec = json.loads(path.read_text())
    spec["spec"]["model"] = model_ref(model).encode()
    Manifest.decode(spec)
    path.write_text(json.dumps(spec))
    rng = np.random.default_rng(0)
    for part in (out / "data").glob("*.parquet"):
        table = pq.read_table(part)
        tokens = pa.array([rng.integers(3, 48, 10).tolist() for _ in range(table.num_rows)], table.schema.field("token_ids").type)
        pq.write_table(table.set_column(table.schema.get_field_index("token_ids"), table.schema.field("token_ids"), tokens), part)
