"""`specmill tune` measures every cell of its grid and recommends one of them."""

import json
from pathlib import Path
from typing import Any

from producer.tune import Measurement, best


def test_every_cell_is_measured_and_one_is_recommended(specmill: Any, agreeing_pair: tuple[Path, Path]) -> None:
    model, head = agreeing_pair
    grid = ("--slots", 2, "--slots", 4, "--depth", 0, "--depth", 2)
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
