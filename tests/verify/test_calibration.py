"""The calibration verdict: silent for honest engines at every length and look, loud for others, and it names where."""

import numpy as np
import pytest

from schemas.errors import CalibrationError
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
from worker.calibration import Calibration, CalibrationWatch, by_part

BACKEND = Backend(device="cpu", chip="x", mlx="-", blas="", row_invariant=True)


def test_honest_drafts_are_never_called_broken_at_any_look() -> None:
    rng = np.random.default_rng(0)
    for alphas in (np.full(20_000, 0.7), np.full(20_000, 0.9995), rng.random(20_000), rng.beta(0.1, 0.1, 20_000)):
        accepted = np.cumsum(rng.random(20_000) < alphas)
        expected, variance = np.cumsum(alphas), np.cumsum(alphas * (1 - alphas))
        assert not any(Calibration(int(a), e, v).broken for a, e, v in zip(accepted, expected, variance, strict=True))


def test_one_rare_rejection_is_no_verdict_though_its_z_is_large() -> None:
    one = Calibration(accepted=99, expected=99.99, variance=0.00999)
    assert one.z is not None
    assert (one.z < -5, one.broken) == (True, False)


@pytest.mark.parametrize(("claimed", "drafts"), [(0.72, 14_000), (0.8, 800), (1.0, 60)])
def test_a_wrong_alpha_is_called_broken_in_the_end(claimed: float, drafts: int) -> None:
    calibration = Calibration(round(0.7 * drafts), claimed * drafts, claimed * (1 - claimed) * drafts)
    assert calibration.broken


def test_a_greedy_engine_may_be_wrong_a_few_times_and_no_more() -> None:
    assert not Calibration(1000, 1000.0, 0.0).broken
    assert Calibration(1000, 1000.0, 0.0).z is None
    assert Calibration(1000, 1009.0, 0.0).broken


def report(worker: str, accepted: tuple[int, ...], expected: tuple[float, ...]) -> AttemptReport:
    variance = tuple(0.2 * value for value in expected)
    tally = Tally(
        drafted_by_depth=tuple(2 * a for a in accepted),
        accepted_by_depth=accepted,
        expected_accepted=sum(expected),
        accepted_variance=sum(variance),
        expected_by_depth=expected,
        variance_by_depth=variance,
    )
    costs = dict.fromkeys(("seconds", "load_seconds", "prefill_seconds", "draft_seconds", "verify_seconds", "commit_seconds"), 1.0)
    return AttemptReport(run_id="r", shard=0, attempt=1, worker=worker, backend=BACKEND, started=0.0, peak_bytes=0, tally=tally, **costs)


def test_the_watch_names_the_worker_and_the_depth() -> None:
    watch = CalibrationWatch()
    for _ in range(50):
        watch.check(report("good", (1000, 500), (1001.0, 499.0)))
    watch.check(report("bad", (1000, 500), (960.0, 540.0)))
    # Both depths together look right.
    with pytest.raises(CalibrationError, match=r"on worker bad \(x\) at depth 1: z = "):
        watch.check(report("bad", (9000, 4500), (8640.0, 4860.0)))


def test_depths_and_total_come_from_a_sum_of_tallies() -> None:
    total = sum((report("w", (10, 4), (9.5, 4.5)).tally for _ in range(3)), Tally())
    parts = by_part(total)
    assert list(parts) == ["in total", "at depth 1", "at depth 2"]
    assert (parts["in total"].accepted, parts["at depth 2"].expected) == (42, pytest.approx(13.5))
