"""A merge in which a job does not gain is undone, and neither job merges again."""

import pytest

from schemas.base import Outcome
from schemas.decisions import JobCompleted
from schemas.merging.commands import TaskAssigned, TaskReleased
from schemas.merging.outcomes import MergeEvaluated, PlanDecided, TaskChanged
from tests.support.merging import withdraw
from tests.support.merging_script import Script, ending_runs, of, share


@pytest.fixture
def script() -> Script:
    """Before training jobs have an accuracy of 0.1."""
    script = Script()
    script.ready("a", "b")
    return script


def undone(outcomes: list[Outcome]) -> list[tuple[str, tuple[str, ...]]]:
    """Return what nodes are ordered to undo, and of which jobs."""
    return [(each.reason, each.job_ids) for each in of(TaskReleased, outcomes)]


def reasons(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    changes = [(each.reason, ",".join(each.job_ids)) for each in of(TaskChanged, outcomes)]
    return changes + [(each.reason, each.job_id) for each in of(MergeEvaluated, outcomes)]


def resumed(outcomes: list[Outcome]) -> dict[str, int]:
    return {
        order.job_id: order.resume_iterations for each in of(TaskAssigned, outcomes) for order in each.orders
    }


def is_refused(script: Script, *job_ids: str) -> bool:
    """Return whether the jobs are not merged even where a plan merges them."""
    asked = script.ask()
    assert {unit.part for unit in asked.problem.units} == {"none"}
    (decided,) = of(PlanDecided, script.answer(share(*job_ids), asked=asked))
    return decided.dropped == 1


def test_receiver_without_gain_is_split_from_donor(script):
    script.plan(share("a", "b"))
    donor = [script.evaluated("a", 1.0, 0.3), script.evaluated("b", 1.0, 0.1, phase="donor")]
    assert reasons(script.send(*donor)) == []
    script.send(script.evaluated("a", 2.0, 0.5))
    outcomes = script.send(script.evaluated("b", 2.0, 0.09, phase="donor"))
    assert reasons(outcomes) == [("undone", "a,b"), ("undone", "b")]
    assert undone(outcomes) == [("undone", ("b",))]
    (change,) = of(TaskChanged, outcomes)
    assert change.facts == {
        "case": "not_above_before",
        "job_id": "b",
        "epochs": 2.0,
        "best_accuracy": 0.1,
        "accuracy_before": 0.1,
    }
    script.end("a", iterations=210)
    assert is_refused(script, "a", "b")
    assert resumed(script.plan(share("a"), share("b"))) == {"a": 210, "b": 0}
    outcomes = script.send(script.finished("a", 1_000), script.finished("b", 900))
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["a", "b"]
    assert of(MergeEvaluated, outcomes) == [], "both have run alone"


def test_receiver_with_gain_stays(script):
    script.plan(share("a", "b"))
    for epochs, accuracy in ((1.0, 0.11), (2.0, 0.05), (3.0, 0.0)):
        assert reasons(script.send(script.evaluated("b", epochs, accuracy, phase="donor"))) == []


def test_receiver_no_better_than_alone_restarts(script):
    script.ready("c", data="b")
    script.plan(share("c"))
    script.send(script.evaluated("c", 2.0, 0.6))  # what is usual
    script.plan(share("a", "b"), share("c"))
    script.send(script.evaluated("b", 2.0, 0.3, phase="donor"), script.finished("a", 1_000))
    assert reasons(script.send(script.evaluated("b", 1.0, 0.5))) == []
    outcomes = script.send(script.evaluated("b", 2.0, 0.55))
    assert reasons(outcomes) == [("undone", "b"), ("undone", "b")]
    assert undone(outcomes) == [("undone", ("b",))]
    (change,) = of(TaskChanged, outcomes)
    assert change.facts == {
        "case": "not_above_alone",
        "job_id": "b",
        "epochs": 2.0,
        "best_accuracy": 0.55,
        "accuracy_alone": 0.6,
    }
    assert script.job("b")["iterations"] == 0
    script.end("b", iterations=0)
    assert resumed(script.plan(share("b"), share("c"))) == {"b": 0}


def test_undone_spatial_merge_restarts_both_unmerged(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.evaluated("a", 2.0, 0.4))
    outcomes = script.send(script.evaluated("b", 2.0, 0.1))
    assert reasons(outcomes) == [("undone", "a,b"), ("undone", "a"), ("undone", "b")]
    assert undone(outcomes) == [("undone", ("a", "b"))]
    script.end("a", "b", iterations=0)
    assert is_refused(script, "a", "b")
    assert resumed(script.plan(share("a"), share("b"))) == {"a": 0, "b": 0}


def test_progress_saved_before_undo_is_unused(script):
    script.plan(share("a", "b", mode="spatial"))
    run = script.job("a")["run_id"]
    script.send(script.evaluated("b", 2.0, 0.1))
    script.send(script.progressed("a", 240, run=run))
    assert script.job("a")["iterations"] == 0


def test_saved_state_of_undone_merge_is_unused(script):
    script.plan(share("a", "b"))
    script.send(script.finished("a", 900), script.evaluated("b", 2.0, 0.06))
    script.end("b", iterations=210)  # it stopped regularly, before it received the undo
    assert script.job("b")["iterations"] == 0
    (assigned,) = of(TaskAssigned, script.plan(share("b")))
    (order,) = assigned.orders
    assert (order.resume_iterations, order.oldest_generation) == (0, assigned.generation)
    script.send(script.progressed("b", 50))
    assert resumed(script.plan(share("b", gpus=2))) == {}
    (again,) = of(TaskAssigned, script.end("b", iterations=60))
    assert (again.orders[0].resume_iterations, again.orders[0].oldest_generation) == (60, assigned.generation)


def test_donor_continues_from_its_own_progress(script):
    script.plan(share("a", "b"))
    script.send(script.evaluated("b", 2.0, 0.09, phase="donor"))
    script.end("a", iterations=210)
    (assigned,) = of(TaskAssigned, script.plan(share("a")))
    assert (assigned.orders[0].resume_iterations, assigned.orders[0].oldest_generation) == (210, 1)


def test_job_completed_before_undo_changes_no_estimate(script):
    script.plan(share("a", "b"))
    script.send(script.finished("a", 900), script.evaluated("b", 2.0, 0.06))
    (run,) = ending_runs(script.job("b"))
    kind = script.job("b")["kind"]
    assert of(JobCompleted, script.send(script.finished("b", 210, run=run)))
    assert script.kinds[kind]["finished"] == 0


def test_only_undone_job_is_remembered(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.evaluated("b", 2.0, 0.1))
    (past,) = script.bench.described["knowledge"]["outcomes"]
    task = script.kinds[script.job("b")["kind"]]["task"]
    assert (past["receiver"], past["epochs"]) == (task, None)


@pytest.fixture
def aiming() -> Script:
    """Jobs with an accuracy as their target, 0.9, and 1,000 iterations to reach it."""
    script = Script()
    script.ready("a", "b", accuracy=0.9)
    return script


def used_up(script: Script, job_id: str, accuracy: float) -> list[Outcome]:
    """A job has had all its iterations."""
    return script.send(script.evaluated(job_id, 10.0, accuracy), script.finished(job_id, 1_000))


def test_receiver_short_of_target_gets_iterations_again(aiming):
    aiming.plan(share("a", "b"))
    aiming.send(aiming.evaluated("a", 3.0, 0.9), aiming.finished("a", 300))
    outcomes = used_up(aiming, "b", 0.89)
    assert reasons(outcomes) == [("undone", "b"), ("undone", "b")]
    (change,) = of(TaskChanged, outcomes)
    assert change.facts == {
        "case": "target_missed",
        "job_id": "b",
        "iterations": 1_000,
        "best_accuracy": 0.89,
        "target_accuracy": 0.9,
    }
    assert of(JobCompleted, outcomes) == []
    (assigned,) = of(TaskAssigned, aiming.plan(share("b")))
    (order,) = assigned.orders
    assert (order.resume_iterations, order.oldest_generation) == (0, assigned.generation)
    outcomes = used_up(aiming, "b", 0.88)
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["b"], "alone it has had its chance"


def test_other_job_of_undone_spatial_merge_continues(aiming):
    aiming.plan(share("a", "b", mode="spatial"))
    aiming.send(aiming.evaluated("a", 10.0, 0.8))
    outcomes = used_up(aiming, "b", 0.89)
    assert reasons(outcomes) == [("undone", "a,b"), ("undone", "b")]
    assert undone(outcomes) == [("reallocated", ("a", "b"))]
    aiming.end("a", iterations=990)
    assert is_refused(aiming, "a", "b")
    assert resumed(aiming.plan(share("a"), share("b"))) == {"a": 990, "b": 0}


def test_exhausted_job_without_gpus_gets_iterations_again(aiming):
    aiming.plan(share("a", "b", mode="spatial"))
    aiming.send(aiming.evaluated("a", 9.0, 0.8), aiming.evaluated("b", 9.0, 0.89))
    aiming.plan()
    runs = {job_id: next(iter(ending_runs(aiming.job(job_id)))) for job_id in ("a", "b")}
    both = share("a", "b", mode="spatial")
    assert of(TaskAssigned, aiming.plan(both)) == [], "both runs have yet to end"
    aiming.send(aiming.progressed("a", 990, complete=True, run=runs["a"]))
    outcomes = aiming.send(aiming.finished("b", 1_000, run=runs["b"]))
    assert reasons(outcomes) == [("undone", "a,b"), ("undone", "b")]
    assert resumed(aiming.plan(share("a"), share("b"))) == {"a": 990, "b": 0}


@pytest.mark.parametrize(("alone", "again"), [(0.9, True), (0.88, False)])
def test_usually_missed_target_is_no_merge_fault(aiming, alone, again):
    aiming.ready("c", data="b", accuracy=0.9)
    aiming.plan(share("c"))
    aiming.send(aiming.evaluated("c", 2.0, 0.5))
    used_up(aiming, "c", alone)
    aiming.plan(share("a", "b", mode="spatial"))
    aiming.send(aiming.evaluated("b", 2.0, 0.6))
    completed = of(JobCompleted, used_up(aiming, "b", 0.89))
    assert [each.job_id for each in completed] == ([] if again else ["b"])


def test_restarted_job_has_fresh_failure_count(aiming):
    aiming.plan(share("a", "b", mode="spatial"))
    used_up(aiming, "b", 0.89)
    aiming.end("a", iterations=990)
    for iterations in (100, 200, 300):  # less than it has had in the merge
        aiming.plan(share("b"))
        aiming.send(aiming.progressed("b", iterations))
        outcomes = aiming.send(aiming.failed("b"))
        assert reasons(outcomes) == [("run_failed", "b")]
    assert aiming.job("b")["ends"] is None


def test_donor_and_receiver_at_target_are_over(aiming):
    aiming.plan(share("a", "b"))
    assert of(JobCompleted, used_up(aiming, "a", 0.8))
    assert of(JobCompleted, used_up(aiming, "b", 0.9))


@pytest.fixture
def watched_once() -> Script:
    """Jobs of kind b have an accuracy of 0.6 alone after the one watched epoch, and of 0.9 after all five."""
    script = Script(watched_epochs=1)
    script.ready("alone", data="b", epochs=5)
    script.plan(share("alone"))
    script.send(script.evaluated("alone", 1.0, 0.6), script.evaluated("alone", 5.0, 0.9))
    script.send(script.finished("alone", 500))
    script.ready("a", "b", epochs=5)
    return script


def learned_gain(script: Script) -> float | None:
    """Return the gain of the only merge in the zone's memory."""
    (past,) = script.bench.described["knowledge"]["outcomes"]
    return past["gain"]


@pytest.mark.parametrize(("accuracy", "gain"), [(0.6, 0.0), (0.54, -0.1)])
@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_undone_gain_compares_equal_epochs(watched_once, mode, accuracy, gain):
    watched_once.plan(share("a", "b", mode=mode))
    if mode == "temporal":
        watched_once.send(watched_once.finished("a", 500))
    evaluated = of(MergeEvaluated, watched_once.send(watched_once.evaluated("b", 1.0, accuracy)))
    gains = {each.job_id: each.gain for each in evaluated}
    assert gains["b"] == pytest.approx(gain)
    assert gains.get("a") is None, "nothing of its kind has run alone"
    assert learned_gain(watched_once) == gains["b"]


def test_gain_undone_by_donor_weights_is_unknown(watched_once):
    watched_once.plan(share("a", "b"))
    outcomes = watched_once.send(watched_once.evaluated("b", 1.0, 0.1, phase="donor"))
    assert [(each.reason, each.gain) for each in of(MergeEvaluated, outcomes)] == [("undone", None)]
    assert learned_gain(watched_once) is None


def test_gain_of_withdrawn_job_is_unknown(watched_once):
    watched_once.plan(share("a", "b", mode="spatial"))
    watched_once.send(watched_once.evaluated("b", 1.0, 0.7), withdraw("b"))
    outcomes = watched_once.end("b", "a", iterations=100)
    assert [(each.reason, each.gain) for each in of(MergeEvaluated, outcomes)] == [("ended_early", None)]


def test_gain_of_missed_target_compares_ends(aiming):
    aiming.ready("c", data="b", accuracy=0.9)
    aiming.plan(share("c"))
    aiming.send(aiming.evaluated("c", 2.0, 0.5))
    used_up(aiming, "c", 0.9)
    aiming.plan(share("a", "b", mode="spatial"))
    aiming.send(aiming.evaluated("b", 2.0, 0.6))
    (evaluated,) = of(MergeEvaluated, used_up(aiming, "b", 0.81))
    assert (evaluated.reason, evaluated.gain) == ("undone", pytest.approx(-0.1))


@pytest.mark.parametrize("watched", [1, 3])
def test_the_number_of_epochs_is_a_setting(watched):
    script = Script(watched_epochs=watched)
    script.ready("a", "b")
    (assigned,) = of(TaskAssigned, script.plan(share("a", "b")))
    assert assigned.watched_epochs == watched
    for epochs in range(1, watched):
        assert reasons(script.send(script.evaluated("b", epochs, 0.0, phase="donor"))) == []
    assert reasons(script.send(script.evaluated("b", watched, 0.0, phase="donor")))


def test_unshared_job_is_in_no_merge():
    script = Script()
    script.ready("a", "b", sharing=False)
    assert is_refused(script, "a", "b")
    script.ready("c", "d")
    (decided,) = of(PlanDecided, script.plan(share("c", "a"), share("b", "d", mode="spatial")))
    assert (decided.reason, decided.dropped) == ("out_of_date", 2)
