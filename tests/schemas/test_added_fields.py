"""A field that joins later: what was written without it is still read, digests stay, and versions that do not know it refuse it by name."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from producer.manifest_file import read_manifest
from producer.row_selection import RowSelection
from producer.verification import VerifyRequest, verify
from schemas.errors import DecodeError
from schemas.json_schema import json_schema
from schemas.wire import Wire, added
from worker.landing import read_part_record
from worker.part_names import contract_digest

STORED = Path(__file__).parent / "dataset-v1"
"""Made by the first form of every class: `specmill run` of three prompts with `--model scripted --mtp scripted --n 2 --shard-size 2`."""


@dataclass(frozen=True)
class Before(Wire):
    """A class in its first form.

    Attributes:
        seed: given always.
    """

    seed: int


@dataclass(frozen=True)
class Now(Wire):
    """The same class after two fields have joined.

    Attributes:
        seed: given always.
        rule: joined later.
        words: joined later.
    """

    seed: int
    rule: str | None = added(None)
    words: dict[str, int] = added(factory=dict)


def test_what_was_written_before_means_as_before() -> None:
    assert Now.from_json(Before(3).to_json()) == Now(3, rule=None, words={})


def test_an_unused_field_is_not_written_and_a_used_one_is_refused_by_those_who_do_not_know_it() -> None:
    assert Now(3).to_json() == Before(3).to_json()
    used = Now(3, rule="x", words={"a": 1})
    assert Now.from_json(used.to_json()) == used
    with pytest.raises(DecodeError, match="Before has unknown field 'rule'; known fields: seed"):
        Before.from_json(used.to_json())


def test_the_first_fields_must_be_there_and_a_default_that_is_written_out_is_read() -> None:
    with pytest.raises(DecodeError, match="Now lacks field 'seed'"):
        Now.decode({"v": 1, "rule": "x"})
    assert Now.decode({"v": 1, "seed": 3, "rule": None, "words": {}}) == Now(3)
    with pytest.raises(DecodeError, match=r"Now\.rule must be str or NoneType; received 7"):
        Now.decode({"v": 1, "seed": 3, "rule": 7})


def test_the_json_schema_requires_the_first_fields_only() -> None:
    schema = json_schema(Now)
    assert schema["required"] == ["v", "seed"]
    assert set(schema["properties"]) == {"v", "seed", "rule", "words"}  # type: ignore[arg-type]


def test_a_stored_dataset_is_read_and_means_what_it_meant() -> None:
    """If this fails, a field joined without `added`, or its default is not `as before`: then every older dataset is lost."""
    manifest = read_manifest(STORED)
    assert manifest is not None
    assert json.loads((STORED / "manifest.json").read_text()) == manifest.encode()
    for shard in manifest.shards:
        record = read_part_record(STORED / shard.file)
        assert record.contract == contract_digest(manifest.spec)
    assert contract_digest(replace(manifest.spec, seed=8)) != contract_digest(manifest.spec)
    report = verify(STORED, VerifyRequest(RowSelection(every=True), mode="regenerate"))
    assert (report.exit_code, [verdict.problems for verdict in report.verdicts]) == (0, [()] * 6), report.text()
