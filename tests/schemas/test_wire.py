"""What crosses a border: round trips, and every refusal by name."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.constraint import Constraint
from schemas.errors import DecodeError
from schemas.manifest import Manifest, ShardRecord
from schemas.profile import Backend, ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from schemas.shard import ShardMessage
from schemas.wire import Wire

BACKEND = Backend(device="gpu", chip="Apple M9", mlx="0.32.4", blas="", row_invariant=False)


def make_spec(**changes: object) -> RunSpec:
    values: dict[str, object] = {
        "run_id": "a1",
        "model": ModelRef("some/model", "d" * 64, {"config.json": "e" * 64}),
        "head": ModelRef("mtp.safetensors", "f" * 64, {}),
        "sampler": SamplerConfig(temperature=0.7, logit_bias={"3": 1.5}),
        "max_tokens": 10,
        "stop": ("\n\n", "é"),
        "samples": 2,
        "seed": 2**64 - 1,
        "coupling": "rejection",
        "profile": ExecutionProfile(),
        "raw": False,
        "logprobs": True,
        "shard_size": 4,
        "records": 10,
        "prompts_digest": "9" * 64,
    }
    return RunSpec(**{**values, **changes})  # type: ignore[arg-type]


VALUES: list[Wire] = [
    make_spec(),
    make_spec(head=None, draft_model=ModelRef("small", "a", {}), drafter="model"),
    make_spec(constraint=Constraint("regex", "é+"), thinking_budget=0),
    make_spec(ignore_eos=True),
    ShardMessage(run_id="a1", shard=3),
    Manifest(make_spec(), "complete", {"mlx": "0.32.4"}, (ShardRecord(0, "data/part-00000.parquet", 8, 1, "c" * 64, BACKEND),)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_survives_its_wire_form(value: Wire) -> None:
    assert type(value).from_json(value.to_json()) == value
    assert json.loads(value.to_json())["v"] == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda wire: wire.pop("v"), "ShardMessage has no version field 'v'"),
        (lambda wire: wire.update(v=2), "ShardMessage has version 2; this specmill reads v=1"),
        (lambda wire: wire.update(colour="red"), "ShardMessage has unknown field 'colour'"),
        (lambda wire: wire.pop("shard"), "ShardMessage lacks field 'shard'"),
        (lambda wire: wire.update(shard="3"), "ShardMessage.shard must be int; received '3'"),
        (lambda wire: wire.update(shard=True), "ShardMessage.shard must be int; received True"),
        (lambda wire: wire.update(shard=-1), "shard must be >= 0; received -1"),
        (lambda wire: wire.update(run_id="../etc"), "run_id must be 1 to 64 letters or digits; received '../etc'"),
    ],
)
def test_what_is_wrong_is_refused_by_name(change, says: str) -> None:
    wire = ShardMessage(run_id="a1", shard=3).encode()
    change(wire)
    with pytest.raises(DecodeError) as refusal:
        ShardMessage.decode(wire)
    assert says in str(refusal.value)


@pytest.mark.parametrize("text", ["", "[]", "3", '"x"', "{", '{"v": NaN}', "[" * 100_000])
def test_what_is_no_object_is_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError):
        ShardMessage.from_json(text)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_json_at_all_is_decoded_or_refused(data: object) -> None:
    for cls in (RunSpec, Manifest, ShardMessage):
        with pytest.raises(DecodeError):
            cls.decode(data)


def test_an_error_inside_a_nested_value_keeps_its_place() -> None:
    wire = make_spec().encode()
    wire["profile"]["slots"] = 0  # type: ignore[index,call-overload]
    with pytest.raises(DecodeError, match=r"slots must be in \[1, 256\]; received 0"):
        RunSpec.decode(wire)
    wire = make_spec().encode()
    wire["model"]["files"]["x"] = 3  # type: ignore[index,call-overload]
    with pytest.raises(DecodeError, match="files"):
        RunSpec.decode(wire)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_tokens": 0}, "max_tokens must be in [1, 1000000]; received 0"),
        ({"seed": 2**64}, "seed must be in [0, 18446744073709551615]"),
        ({"coupling": "none"}, "coupling must be one of rejection, shared-noise; received 'none'"),
        ({"stop": ("a", "")}, "stop must hold no empty string"),
        ({"thinking_budget": -1}, "thinking_budget must be in [0, 1000000]; received -1"),
        ({"constraint": Constraint("regex", "a"), "ignore_eos": True}, "where a completion may end; received it together with ignore_eos"),
        ({"constraint": Constraint("regex", "a"), "per_row": ("min_tokens",)}, "received it together with min_tokens of rows' own"),
        ({"head": None}, "depth must be 0 without an MTP head; received 2"),
    ],
)
def test_a_spec_states_interval_and_value(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is compared below, letter by letter
        make_spec(**changes)
    assert says in str(refusal.value)


def test_names_and_run_ids_are_not_part_of_the_contract() -> None:
    spec = make_spec()
    renamed = dataclasses.replace(spec, run_id="b2", model=dataclasses.replace(spec.model, name="elsewhere/model"))
    assert spec.contract() == renamed.contract()
    assert spec.differences(renamed) == []
    model = dict.fromkeys(("head",), None)
    drafted = make_spec(**model, draft_model=ModelRef("small", "a", {}), drafter="model")
    moved = make_spec(**model, draft_model=ModelRef("moved", "a", {}), drafter="model")
    assert drafted.contract() == moved.contract()


def test_a_difference_names_the_field_and_both_values() -> None:
    assert make_spec().differences(make_spec(seed=3, samples=1)) == ["samples: 2 / 1", f"seed: {2**64 - 1} / 3"]


def test_shards_cover_the_records() -> None:
    spec = make_spec(records=10, shard_size=4)
    assert (spec.shards, [spec.shard_records(shard) for shard in range(3)]) == (3, [4, 4, 2])
    with pytest.raises(ValueError, match=r"shard must be in \[0, 2\]; received 3"):
        spec.shard_records(3)
    assert make_spec(records=0).shards == 0
