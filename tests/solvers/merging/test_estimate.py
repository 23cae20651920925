"""What a zone is told of its kinds of jobs, alone and merged."""

from typing import Any

from schemas.merging.estimates import EstimateProblem, EstimateSolution, KindFacts, PairScore
from solvers.merging.estimate import estimate

FALLING = (2.0, 1.6, 1.3, 1.1, 1.0, 0.92, 0.86, 0.82, 0.79, 0.77, 0.76, 0.75)


def kind(task: str = "a", **facts: Any) -> KindFacts:
    known: dict[str, Any] = {
        "task": task,
        "dataset_samples": 800,
        "losses": FALLING,
        "iterations_per_epoch": 100,
        "most_iterations": 1_000,
        "accuracy_before": 0.1,
        "target_accuracy": 0.8,
        "finished_iterations": None,
        "finished_accuracy": None,
    }
    return KindFacts(**{**known, **facts})


def foretold(*kinds: KindFacts, shares: tuple[float, ...] = ()) -> EstimateSolution:
    """Of kinds that are all the same by their embeddings."""
    pairs = [(a, b) for a in range(len(kinds)) for b in range(len(kinds))]
    problem = EstimateProblem(
        modes=("temporal", "spatial"),
        kinds=kinds,
        shares=shares,
        scores=tuple(PairScore(donor=a, receiver=b, score=0.0) for a, b in pairs),
        outcomes=(),
    )
    return estimate(problem, 30.0)


def test_a_job_needs_what_jobs_of_its_kind_needed_or_a_usual_part_of_its_bound_or_all_of_it() -> None:
    assert foretold(kind(finished_iterations=312.0)).kinds[0].iterations == 312
    assert foretold(kind(), shares=(0.1, 0.4, 0.5)).kinds[0].iterations == 400
    assert foretold(kind()).kinds[0].iterations == 1_000


def test_without_an_accuracy_to_reach_a_job_takes_all_its_iterations_and_no_merge_makes_it_shorter() -> None:
    without = kind("b", target_accuracy=None, most_iterations=500)
    told = foretold(kind("a"), without, shares=(0.1,))
    assert told.kinds[1].iterations == 500
    ratios = {(one.mode, one.donor, one.receiver): one for one in told.transfers}
    assert ratios["temporal", 0, 1].receiver_ratio == 1.0
    assert ratios["spatial", 0, 1].receiver_ratio == 1.0
    # The other one may learn from it.
    assert ratios["temporal", 1, 0].receiver_ratio < 1.0
    assert ratios["spatial", 0, 1].donor_ratio < 1.0


def test_a_curve_that_does_not_fall_is_named_and_its_kind_is_in_no_merge() -> None:
    told = foretold(kind("a"), kind("b", losses=(1.0,) * 12))
    assert "losses: " in told.kinds[1].fault
    assert not told.kinds[0].fault
    assert {(one.donor, one.receiver) for one in told.transfers} == {(0, 0)}
