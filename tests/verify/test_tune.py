"""`specmill tune` measures every cell of its grid, recommends one of them, and keeps what `--depth auto` uses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from producer.depth_choice import best_depth, choose_depth
from producer.manifest_file import read_manifest
from producer.tune import Measurement, best, tuned_profile
from producer.tuned_profile_file import find_tuned, write_tuned
from schemas.profile import ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from schemas.tuned_profile import TunedProfile


def test_every_cell_is_measured_and_one_is_recommended(specmill: Any, agreeing_pair: tuple[Path, Path], own_cache: Path) -> None:
    model, head = agreeing_pair
    grid = ("--slots", "2,4", "--depth", 0, "--depth", 2)
    done = specmill("tune", "--model", model, "--mtp", head, *grid, "--max-tokens", 8, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(cell["depth"], cell["slots"]) for cell in found["cells"]] == [(0, 2), (0, 4), (2, 2), (2, 4)]
    assert all(cell["rows_per_second"] > 0 and cell["problem"] is None and cell["peak_bytes"] > 0 for cell in found["cells"])
    assert [len(cell["acceptance"]) for cell in found["cells"]] == [0, 0, 2, 2]
    assert found["best"] in found["cells"]


def test_the_smaller_of_two_nearly_equal_cells_is_recommended_and_a_failed_one_never() -> None:
    cells = [
        Measurement(8, 1, rows_per_second=9.9),
        Measurement(32, 1, rows_per_second=10.0),
        Measurement(64, 1, rows_per_second=99.0, problem="out of memory"),
        Measurement(4, 0, rows_per_second=5.0),
    ]
    assert best(cells) == cells[0]
    assert best(cells[2:3]) is None


def test_a_depth_without_a_head_is_refused(specmill: Any) -> None:
    done = specmill("tune", "--model", "scripted", "--depth", 2)
    assert (done.returncode, "--depth must be 0 without --mtp" in done.stderr) == (2, True)


def test_what_is_no_list_of_numbers_is_refused(specmill: Any) -> None:
    for given, says in (("2,x", "'x' is not a valid integer range"), ("2,,4", "'' is not a valid"), ("2,999", "999 is not in the range")):
        done = specmill("tune", "--model", "scripted", "--slots", given)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_depth_auto_uses_what_tune_has_found_here(
    specmill: Any, agreeing_pair: tuple[Path, Path], prompts: Path, tmp_path: Path, own_cache: Path
) -> None:
    model, head = agreeing_pair
    pair = ("--model", model, "--mtp", head, "--max-tokens", 8)
    grid = [word for slots in (2, 3) for word in ("--slots", slots)] + [word for depth in (0, 2) for word in ("--depth", depth)]
    done = specmill("tune", *pair, *grid, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    path = Path(found["profile"])
    assert path.is_relative_to(own_cache)
    profile = TunedProfile.from_json(path.read_bytes())
    assert (profile.slots, profile.depth) == (found["best"]["slots"], found["best"]["depth"])
    assert [(trial.slots, trial.depth) for trial in profile.trials] == [(2, 0), (2, 2), (3, 0), (3, 2)]

    # What is the fastest depends on the machine's mood: from here on it is the cell that nobody would guess.
    profile = replace(profile, slots=3, depth=2)
    assert write_tuned(profile) == path
    made = specmill("run", prompts, "--out", "out", *pair, "--depth", "auto")
    assert made.returncode == 0, made.stderr
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert (manifest.spec.profile.slots, manifest.spec.profile.depth) == (3, 2)
    assert manifest.depth_trials == profile.at(3)
    assert "`specmill tune` has measured 3 slots here, at temperature 0.7 and top-p 0.95" in made.stderr
    assert "measuring depth" not in made.stderr

    notes: list[str] = []
    fixed, trials = choose_depth(
        replace(manifest.spec, profile=replace(manifest.spec.profile, slots=2)), b"", notes.append, slots_given=True
    )
    assert (fixed.profile.slots, fixed.profile.depth, tuple(trials)) == (2, best_depth(trials), profile.at(2))

    path.unlink()
    again = specmill("run", prompts, "--out", "out", *pair, "--depth", "auto")
    assert "is complete: nothing to do" in again.stderr, "slots and depth are those that the run began with"


def test_a_profile_of_other_versions_is_stale_and_one_of_other_files_is_none(own_cache: Path) -> None:
    spec, backend, notes = make_spec(), "gpu/apple-m9/mlx-0.40.0", list[str]()
    cells = [Measurement(2, depth, rows_per_second=1.0, tokens=8, tokens_per_cycle=1.0, backend=backend) for depth in (0, 1)]
    profile = tuned_profile(spec, cells)
    assert profile is not None
    write_tuned(profile)
    assert find_tuned(spec, backend, notes.append) == profile
    other = ModelRef("other", "1" * 64, {})
    others = (replace(spec, model=other), replace(spec, head=other), replace(spec, profile=replace(spec.profile, dtype="float16")))
    assert [find_tuned(changed, backend, notes.append) for changed in others] == [None] * 3
    assert find_tuned(spec, "gpu/apple-m9-max/mlx-0.40.0", notes.append) is None
    assert find_tuned(replace(spec, drafter="lookup"), backend, notes.append) is None
    assert notes == []
    assert find_tuned(spec, "gpu/apple-m9/mlx-0.41.0", notes.append) is None
    path = write_tuned(replace(profile, specmill="0.0.1"))
    assert find_tuned(spec, backend, notes.append) is None
    path.write_text("{}")
    assert find_tuned(spec, backend, notes.append) is None
    says = ("mlx-0.41.0 now; `specmill tune` renews it", "is stale: specmill 0.0.1 on gpu/apple-m9/mlx-0.40.0 then", "cannot be read (")
    assert [text in note for text, note in zip(says, notes, strict=True)] == [True] * 3


def test_a_grid_that_cannot_decide_against_drafting_is_not_kept() -> None:
    spec = make_spec()
    cells = [Measurement(2, depth, rows_per_second=1.0, tokens=8, tokens_per_cycle=1.0, backend="cpu/x/no-mlx") for depth in (0, 1)]
    kept = tuned_profile(spec, cells)
    assert kept is not None
    assert [trial.tokens_per_second for trial in kept.trials] == [2.0, 2.0]
    assert tuned_profile(spec, cells[1:]) is None
    assert tuned_profile(spec, [*cells, replace(cells[1], slots=3)]) is None
    assert tuned_profile(replace(spec, head=None, profile=replace(spec.profile, depth=0)), cells[:1]) is None


def make_spec() -> RunSpec:
    reference = ModelRef("scripted", "0" * 64, {})
    return RunSpec(
        run_id="tune",
        model=reference,
        head=reference,
        sampler=SamplerConfig(),
        max_tokens=8,
        stop=(),
        samples=1,
        seed=0,
        coupling="rejection",
        profile=ExecutionProfile(),
        raw=False,
        logprobs=False,
        shard_size=1,
        records=1,
        prompts_digest="",
    )
