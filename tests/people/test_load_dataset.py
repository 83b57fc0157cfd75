"""A dataset as Hugging Face's own libraries see it: rows by `load_dataset`, and the card's front matter."""

import pyarrow.parquet as pq
import pytest
from scripted_dataset import make_dataset

from producer.dataset import Dataset
from producer.dataset_card import dataset_card
from producer.run_summary import RunSummary

datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    datasets.disable_progress_bars()
    lines = [{"id": f"r{i}", "prompt": f"p{i}", "tags": ["a", "b"], "heat": 0.1 * i, "meta": {"x": i}} for i in range(11)]
    folder = make_dataset(tmp_path, lines, mtp=None, samples=2, logprobs=True, per_row=("temperature=heat",))
    manifest = Dataset.open(folder).manifest
    (folder / "README.md").write_text(dataset_card(manifest, RunSummary.of_dataset(folder, manifest), "specmill run"))
    return folder


def test_load_dataset_reads_every_column_and_value(out, tmp_path):
    by_files = datasets.load_dataset(
        "parquet", data_files=str(out / "data" / "*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    by_card = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    expected = pq.read_table(out / "data").to_pylist()
    assert by_files.to_list() == by_card.to_list() == expected
    assert expected[3]["sampling"]["temperature"] == pytest.approx(0.1)


def test_the_cards_front_matter_is_what_the_hub_reads(out):
    from huggingface_hub import DatasetCard

    card = DatasetCard.load(out / "README.md", ignore_metadata_errors=False)
    assert card.data.to_dict() == {
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
        "size_categories": ["n<1K"],
        "tags": ["synthetic", "specmill"],
    }
    assert "rows' own" in card.text
