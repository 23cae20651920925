"""Estimates from reports on a zone's kinds of jobs and on their merges."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.merging.estimates import (
    MAX_GAIN,
    MAX_SCORE,
    EstimateProblem,
    EstimateSolution,
    FinishedKind,
    KindFacts,
    PairScore,
    PastMerge,
    TransferEstimate,
)
from schemas.merging.workload import LEAST_ACCURACY, MAX_ITERATIONS
from solvers.merging.estimator import estimate, smallest
from solvers.merging.loss_curve import LossCurve

CURVE = LossCurve(0.0, 0.02, 0.5, 0.2)
LOSSES = tuple(CURVE.loss(k) for k in range(1, 65))


def facts(task: str = "red", **changes: object) -> KindFacts:
    fields = {
        "dataset_samples": 1_000,
        "losses": LOSSES,
        "iterations_per_epoch": 100,
        "most_iterations": 1_000,
        "accuracy_before": 0.1,
        "target_accuracy": 0.8,
        "finished_iterations": None,
        "finished_accuracy": None,
    }
    return KindFacts.model_validate({"task": task, **fields, **changes})


def past(donor: str, receiver: str, epochs: float | None, **changes: object) -> PastMerge:
    """Result of a merge whose receiver would have needed 3 epochs alone."""
    fields = {
        "mode": "temporal",
        "donor_samples": 1_000,
        "receiver_samples": 1_000,
        "score": 0.0,
        "gain": None,
        "target": 0.8,
        "best": 0.75 if epochs is None else 0.85,
        "own_epochs": 3.0,
    }
    return PastMerge.model_validate(
        {"donor": donor, "receiver": receiver, "epochs": epochs, **fields, **changes}
    )


def asked(*kinds: KindFacts, score: float | None = 0.0, **fields: Iterable[object]) -> EstimateProblem:
    places = range(len(kinds))
    scores = [PairScore(donor=a, receiver=b, score=score or 0.0) for a in places for b in places]
    defaults = {"modes": ("temporal",), "finished": (), "outcomes": ()}
    return EstimateProblem.model_validate(
        {
            **defaults,
            "kinds": kinds,
            "scores": () if score is None else tuple(scores),
            **{name: tuple(values) for name, values in fields.items()},
        }
    )


def transfer(solution: EstimateSolution, donor: int, receiver: int) -> TransferEstimate:
    return next(one for one in solution.transfers if (one.donor, one.receiver) == (donor, receiver))


def iterations(kind: KindFacts, *finished: FinishedKind) -> int:
    (found,) = estimate(asked(kind, finished=finished), 1.0).kinds
    return found.iterations


def test_smallest_problem_answers_each_kind_and_pair() -> None:
    solution = estimate(smallest(), 1.0)
    assert len(solution.kinds) == 2
    assert len(solution.transfers) == 4 + 3


def test_own_jobs_precede_task_and_others() -> None:
    red, blue = FinishedKind(task="red", share=0.3), FinishedKind(task="blue", share=0.5)
    assert iterations(facts(finished_iterations=420.0), red, blue) == 420
    assert iterations(facts(), red, blue) == 300
    assert iterations(facts(most_iterations=600), blue) == 300
    assert iterations(facts()) == 1_000


def test_target_in_profile_epoch_needs_one():
    other = FinishedKind(task="blue", share=0.9)
    assert iterations(facts(accuracy_after_epoch=0.8), other) == 100
    assert iterations(facts(accuracy_after_epoch=0.79), other) == 900
    assert iterations(facts(accuracy_after_epoch=0.9, most_iterations=60), other) == 60
    assert iterations(facts(accuracy_after_epoch=0.9, target_accuracy=None), other) == 1_000
    assert iterations(facts(accuracy_after_epoch=0.9, finished_iterations=200.0), other) == 200


def test_missed_profile_target_needs_more():
    short = FinishedKind(task="blue", share=0.05)
    assert iterations(facts(), short) == 50
    assert iterations(facts(accuracy_after_epoch=0.79), short) == 100


def test_single_epoch_job_is_not_merged():
    """Three merges of other tasks have saved an epoch of ten."""
    saved = [past(f"d{n}", f"r{n}", 9.0, own_epochs=10.0) for n in range(3)]
    ratios = [
        transfer(
            estimate(asked(facts(), facts("blue", **seen), outcomes=saved, score=None), 1.0), 0, 1
        ).receiver_ratio
        for seen in ({}, {"accuracy_after_epoch": 0.8})
    ]
    assert ratios[0] < ratios[1]


def test_task_with_many_kinds_counts_once() -> None:
    reds = [FinishedKind(task="red", share=share) for share in (0.1, 0.1, 0.1)]
    others = [FinishedKind(task="blue", share=0.5), FinishedKind(task="grey", share=0.9)]
    assert iterations(facts("green"), *reds, *others) == 500


def test_job_without_accuracy_takes_all_iterations() -> None:
    kinds = facts(), facts("blue", target_accuracy=None, finished_iterations=300.0)
    solution = estimate(asked(*kinds, modes=("temporal", "spatial")), 1.0)
    assert solution.kinds[1].iterations == 1_000
    ratios = {(one.mode, one.donor, one.receiver): one for one in solution.transfers}
    assert ratios["temporal", 0, 1].receiver_ratio == 1.0
    assert ratios["spatial", 0, 1].receiver_ratio == 1.0
    # The other one may learn from it.
    assert ratios["temporal", 1, 0].receiver_ratio < 1.0
    assert ratios["spatial", 0, 1].donor_ratio < 1.0


def test_constant_loss_is_fault_without_pairs() -> None:
    solution = estimate(asked(facts(losses=(1.0,) * 30), facts("blue")), 1.0)
    assert solution.kinds[0].fault == "losses_scatter"
    assert solution.kinds[0].iterations == 1_000
    assert {(one.donor, one.receiver) for one in solution.transfers} == {(1, 1)}


def test_similar_tasks_are_first_forecast_to_help() -> None:
    kinds = facts(), facts("blue")
    similar, strange = (estimate(asked(*kinds, score=score), 1.0) for score in (0.0, -1.0))
    assert transfer(similar, 0, 1).receiver_ratio == pytest.approx(0.3)
    assert transfer(strange, 0, 1).receiver_ratio == pytest.approx(1.3)


def test_results_of_other_pairs_gain_weight() -> None:
    kinds = facts(), facts("blue", finished_iterations=300.0)
    ratios = [
        transfer(
            estimate(asked(*kinds, outcomes=[past(f"d{n}", "blue", 2.4) for n in range(count)]), 1.0), 0, 1
        ).receiver_ratio
        for count in (0, 4, 40)
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(0.8, abs=0.1)


def test_losing_merges_soon_stop_similar_pairs() -> None:
    """Embeddings are the same throughout; nine merges of other tasks were undone."""
    kinds = facts(), facts("blue", finished_iterations=300.0)
    failed = [past(f"d{n}", f"r{n}", None) for n in range(9)]
    ratio = transfer(estimate(asked(*kinds, outcomes=failed), 1.0), 0, 1).receiver_ratio
    assert ratio > 1.0
    saved = [past(f"d{n}", f"r{n}", 0.5) for n in range(9, 18)]
    again = transfer(estimate(asked(*kinds, outcomes=failed + saved), 1.0), 0, 1).receiver_ratio
    assert again < 1.0


def test_losses_of_mode_spare_the_other() -> None:
    kinds = facts(), facts("blue", finished_iterations=300.0)
    failed = [past(f"d{n}", f"r{n}", None) for n in range(9)]
    solution = estimate(asked(*kinds, modes=("temporal", "spatial"), outcomes=failed), 1.0)
    by_mode = {
        one.mode: one.receiver_ratio for one in solution.transfers if (one.donor, one.receiver) == (0, 1)
    }
    assert by_mode["spatial"] < by_mode["temporal"]


def test_spatial_merge_averages_scores_of_both_sides() -> None:
    scores = [PairScore(donor=0, receiver=1, score=-0.4), PairScore(donor=1, receiver=0, score=0.0)]
    problem = asked(facts(), facts("blue"), modes=("spatial",)).model_copy(update={"scores": tuple(scores)})
    one = transfer(estimate(problem, 1.0), 0, 1)
    assert one.receiver_ratio == one.donor_ratio == pytest.approx(0.3 + 0.2)


def test_without_embeddings_only_results_count() -> None:
    solution = estimate(asked(facts(), facts("blue"), score=None), 1.0)
    assert transfer(solution, 0, 1).receiver_ratio > 1.0, "even chances of nothing are not worth a merge"


EPOCHS = st.floats(1e-12, MAX_ITERATIONS)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
OUTCOMES = st.fixed_dictionaries(
    {
        "score": st.floats(-MAX_SCORE, MAX_SCORE) | st.none(),
        "gain": st.floats(-1, MAX_GAIN, exclude_min=True) | st.none(),
        "target": st.floats(LEAST_ACCURACY, 1.0),
        "best": st.floats(0, 1),
        "own_epochs": EPOCHS,
    }
)


NOTHING_SAVED = {"gain": None, "target": 1.0, "best": 0.0, "own_epochs": 1.0}


@given(st.lists(st.tuples(OUTCOMES, EPOCHS | st.none()), max_size=6), FINITE)
@example([({**NOTHING_SAVED, "score": 1 / 512}, None), ({**NOTHING_SAVED, "score": 0.0}, 1.0)], 1.0)
@settings(deadline=None)
def test_missing_outcomes_and_scores_still_answer(merges, score) -> None:
    outcomes = [past("red", "blue", epochs, **fields) for fields, epochs in merges]
    told = estimate(asked(facts(), facts("blue"), score=score, outcomes=outcomes), 1.0)
    assert len(told.transfers) == 4
    assert all(math.isfinite(each.receiver_gain) and each.receiver_ratio > 0 for each in told.transfers)


def test_one_short_job_does_not_end_all_merging() -> None:
    kinds = (facts(), facts("blue"))
    lost = estimate(asked(*kinds, outcomes=[past("red", "blue", None, own_epochs=0.001)]), 1.0)
    assert transfer(lost, 1, 0).receiver_ratio < 1


def test_receiver_without_target_gains_by_its_worth():
    """It is as good as jobs alone after a third of their epochs, but does all of its own."""
    kind = facts(target_accuracy=None, finished_iterations=300.0, finished_accuracy=0.8)
    donor = facts("blue")
    outcomes = [past("blue", "red", 1.0, score=None) for _ in range(12)]
    told = estimate(asked(donor, kind, outcomes=outcomes), 1.0)
    assert transfer(told, 0, 1).receiver_ratio < 0.7
    assert transfer(told, 0, 1).evidence == "none", "no completion time gets shorter"
    unknown = facts(target_accuracy=None)
    assert transfer(estimate(asked(donor, unknown), 1.0), 0, 1).receiver_ratio == 1.0
