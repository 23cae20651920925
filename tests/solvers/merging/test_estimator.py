"""YmirEstimator: jobs and merges as the task merger asks for them."""

import pytest

from solvers.merging.accuracy_target import Evaluation, TargetedJob
from solvers.merging.estimator import ProfiledJob, YmirEstimator
from solvers.merging.gain import GainOutcome, ScoreRegression
from solvers.merging.loss_curve import FittedCurve, LossCurve, UnusableTrace
from solvers.merging.merged_target import MergeResult
from solvers.merging.pairs import Candidate
from solvers.merging.transferability import Task2Feat, Task2Vec, spatial_score

CURVE = LossCurve(0.0, 0.02, 0.5, 0.2)
LOSSES = tuple(CURVE.loss(k) for k in range(1, 65))


def job(job_id: str, task: str = "red", **changes) -> ProfiledJob:
    fields = {
        "setting": "usual",
        "samples": 1_000,
        "batch_size": 10,
        "most_iterations": 1_000,
        "target": 0.8,
        "losses": LOSSES,
        "embedding": (1.0, 2.0, float(len(task))),
    }
    return ProfiledJob(job_id, task, **(fields | changes))


def finished(task: str, setting: str = "usual") -> TargetedJob:
    """In 3 of 10 epochs."""
    return TargetedJob(task, setting, 0.8, 10, tuple(Evaluation(n, 0.6 + 0.07 * n) for n in range(1, 11)))


def test_a_job_without_a_target_runs_to_its_limit():
    found = YmirEstimator().jobs([job("a", target=None)], [finished("red")])["a"]
    assert (found.iterations, found.basis) == (1_000, "limit")


def test_finished_jobs_come_before_the_loss_curve_and_that_before_the_limit():
    estimator = YmirEstimator()
    (same,) = estimator.jobs([job("a")], [finished("red"), finished("blue")]).values()
    assert (same.iterations, same.basis) == (300, "same_setting")
    (other,) = estimator.jobs([job("a", most_iterations=500)], [finished("blue")]).values()
    assert (other.iterations, other.basis) == (150, "other_tasks")
    (loss,) = estimator.jobs([job("a")], []).values()
    assert loss.basis == "loss_curve"
    assert 64 < loss.iterations < 1_000
    (flat,) = estimator.jobs([job("a", losses=(1.0,) * 30)], []).values()
    assert (flat.iterations, flat.basis) == (1_000, "limit")
    assert isinstance(flat.curve, UnusableTrace)


def test_a_profile_run_that_met_the_target_says_so():
    shown = (Evaluation(0.0, 0.5), Evaluation(0.5, 0.85))
    (found,) = YmirEstimator().jobs([job("a", evaluations=shown)], [finished("red")]).values()
    assert (found.iterations, found.basis) == (50, "met")


def test_the_fit_can_be_replaced():
    def always(losses):
        return FittedCurve(LossCurve(0, 1, 0, 0), 0.0)

    (found,) = YmirEstimator(fit=always).jobs([job("a", losses=())], []).values()
    assert found.iterations == 32


def test_scores_are_of_the_mode_and_of_the_chosen_kind():
    red, blue = job("a", "red"), job("b", "blue", embedding=(3.0, 1.0, 0.5))
    alone = YmirEstimator().jobs([red, blue], [])
    asked = [(red, blue, "temporal"), (blue, red, "temporal"), (red, blue, "spatial")]
    forth, back, both = YmirEstimator().merges(asked, alone, [], [])
    assert forth.score == Task2Vec().score(red.embedding, blue.embedding) != back.score
    assert both.score == spatial_score(Task2Vec(), red.embedding, blue.embedding)
    feat, *_ = YmirEstimator(transferability=Task2Feat()).merges(asked, alone, [], [])
    assert feat.score == Task2Feat().score(red.embedding, blue.embedding)
    unknown = job("c", "grey", embedding=())
    alone = YmirEstimator().jobs([red, unknown], [])
    (none,) = YmirEstimator().merges([(red, unknown, "temporal")], alone, [], [])
    assert none.score is None


def test_before_any_merge_has_finished_the_transferred_loss_tells():
    red, blue = job("a", "red"), job("b", "blue")
    alone = YmirEstimator().jobs([red, blue], [])
    outcomes = [GainOutcome(Candidate(f"d{n}", "blue", "temporal", 1_000, 1_000), 0.5) for n in range(8)]
    (told,) = YmirEstimator().merges([(red, blue, "temporal")], alone, outcomes, [])
    assert told.gain == pytest.approx(0.5, rel=0.3)
    assert told.iterations < alone["b"].iterations
    (nothing,) = YmirEstimator().merges([(red, blue, "temporal")], alone, [], [])
    assert (nothing.gain, nothing.iterations) == (0.0, alone["b"].iterations)
    assert nothing.saved_iterations < 0, "even chances of nothing are not worth a merge"


def test_results_of_other_merges_tell_the_iterations():
    red, blue = job("a", "red"), job("b", "blue")
    alone = YmirEstimator().jobs([red, blue], [finished("red"), finished("blue")])
    results = [
        MergeResult(Candidate(f"d{n}", "blue", "temporal", 1_000, 1_000), 0.8, 0.9, 1.0, 3.0)
        for n in range(8)
    ]
    (told,) = YmirEstimator().merges([(red, blue, "temporal")], alone, [], results)
    assert told.iterations == pytest.approx(100, rel=0.1)
    assert told.target_probability > 0.8
    assert told.saved_iterations == pytest.approx(0.9 * 200, rel=0.3)


def test_jobs_of_the_same_tasks_share_an_estimate_but_not_their_lengths():
    reds = [job(f"r{n}", most_iterations=500 + n) for n in range(3)]
    blue = job("b", "blue")
    alone = YmirEstimator().jobs([*reds, blue], [finished("blue")])
    told = YmirEstimator(gains=ScoreRegression()).merges(
        [(blue, red, "temporal") for red in reds], alone, [], []
    )
    assert len({one.score for one in told}) == 1
    assert [one.iterations for one in told] == [alone[red.job_id].iterations for red in reds]


def test_embeddings_of_different_length_are_refused():
    red, blue = job("a"), job("b", "blue", embedding=(1.0,))
    alone = YmirEstimator().jobs([red, blue], [])
    with pytest.raises(ValueError, match="one length"):
        YmirEstimator().merges([(red, blue, "temporal")], alone, [], [])
