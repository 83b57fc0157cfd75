"""The example prompts are what the demo and the documentation say they are."""

import json
from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer

PROMPTS = Path(__file__).parents[1] / "examples" / "prompts.jsonl"


def test_example_prompts_are_many_varied_and_well_formed() -> None:
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == [f"demo-{number:03d}" for number in range(1, len(rows) + 1)]
    assert len(rows) >= 64
    assert len({row["topic"] for row in rows}) >= 12
    contents = [row["prompt"] if "prompt" in row else json.dumps(row["messages"]) for row in rows]
    assert len(set(contents)) == len(rows)

    conversations = [row["messages"] for row in rows if "messages" in row]
    assert len(conversations) >= 6
    assert all(set(row) == {"id", "topic", "messages" if "messages" in row else "prompt"} for row in rows)
    for messages in conversations:
        turns = [message["role"] for message in messages if message["role"] != "system"]
        assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]


@pytest.mark.model
def test_example_prompts_fit_a_small_context(smollm2_folder: Path) -> None:
    tokenizer = load_tokenizer(str(smollm2_folder))
    lengths = []
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        lengths.append(len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)))
    assert min(lengths) < 48
    assert 100 < max(lengths) <= 256
