"""Two jobs in one task: from the plan that merges them to the end of both."""

import pytest

from schemas.decisions import JobCompleted, JobRefunded
from schemas.fleet import RunStarted
from schemas.merging.commands import TaskAssigned, TaskReleased
from schemas.merging.outcomes import MergeJudged, PlanDecided, TaskChanged
from schemas.merging.workload import TuningHyperparameters
from tests.support.merging import withdraw
from tests.support.merging_script import BATCH, Script, ending_runs, of, online, share, silent


@pytest.fixture
def script() -> Script:
    script = Script()
    script.ready("a", "b")
    return script


def changes(outcomes: list) -> list[tuple[str, tuple[str, ...], int]]:
    return [(each.reason, each.job_ids, each.gpus) for each in of(TaskChanged, outcomes)]


def assigned(outcomes: list) -> list[tuple[str, list[tuple[str, int]]]]:
    """Modes, and the jobs with the iterations from which they go on."""
    return [
        (each.mode, [(order.job_id, order.resume_iterations) for order in each.orders])
        for each in of(TaskAssigned, outcomes)
    ]


def test_of_a_temporal_merge_the_receiver_goes_on_where_its_donor_ends(script):
    outcomes = script.plan(share("a", "b"))
    assert changes(outcomes) == [("merged", ("a", "b"), 1)]
    assert assigned(outcomes) == [("temporal", [("a", 0), ("b", 0)])]
    (change,) = of(TaskChanged, outcomes)
    assert [(each.job_id, each.iterations, each.iterations_alone) for each in change.foretold] == [
        ("a", 1_000, 1_000),
        ("b", 500, 1_000),
    ]
    outcomes = script.send(script.finished("a", 1_000))
    assert changes(outcomes) == [("job_over", ("b",), 1)]
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["a"]
    assert assigned(outcomes) == [], "its nodes know what comes next"
    outcomes = script.send(script.finished("b", 500))
    (told,) = of(MergeJudged, outcomes)
    assert (told.reason, told.iterations, told.iterations_alone) == ("finished", 500, 1_000)
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["b"]


def test_of_a_spatial_merge_the_slower_job_goes_on_alone(script):
    script.plan(share("a", "b", mode="spatial"))
    outcomes = script.send(script.finished("a", 300))
    assert changes(outcomes) == [("job_over", ("b",), 1)]
    assert [each.job_id for each in of(MergeJudged, outcomes)] == ["a"]
    assert [each.job_id for each in of(MergeJudged, script.send(script.finished("b", 400)))] == ["b"]


def test_a_receiver_that_has_not_begun_keeps_the_gpus_of_its_donor_whatever_is_planned(script):
    script.plan(share("a", "b"))
    script.send(script.finished("a", 1_000))
    script.ready("c")
    asked = script.ask()
    assert [unit.job_ids for unit in asked.problem.units] == [("c",)]
    assert asked.problem.gpus == 3
    outcomes = script.answer(share("c", gpus=3), asked=asked)
    assert changes(outcomes) == [("started", ("c",), 3)]
    script.send(script.progressed("b", 10))
    outcomes = script.plan(share("c", gpus=3))
    assert changes(outcomes) == [("preempted", ("b",), 0)], "its weights are on disk"


def test_a_plan_may_part_a_temporal_merge_before_the_receiver_began(script):
    script.plan(share("a", "b"))
    script.send(script.progressed("a", 100))
    outcomes = script.plan(share("a"), share("b"))
    assert ("separated", ("a", "b"), 0) in changes(outcomes)
    assert of(MergeJudged, outcomes) == [], "there was no merge"
    assert assigned(outcomes) == [("normal", [("b", 0)])], "the other waits for its last run's end"
    assert assigned(script.end("a", iterations=120)) == [("normal", [("a", 120)])]
    assert script.job("a")["merge"] is script.job("b")["merge"] is None


def test_a_job_with_progress_may_still_become_a_donor_but_no_receiver(script):
    script.plan(share("a"))
    script.send(script.progressed("a", 100))
    asked = script.ask()
    assert {unit.job_ids: unit.part for unit in asked.problem.units} == {("a",): "donor", ("b",): "any"}
    (decided,) = of(PlanDecided, script.answer(share("b", "a"), asked=asked))
    assert (decided.reason, decided.dropped) == ("out_of_date", 1)
    outcomes = script.plan(share("a", "b"))
    assert changes(outcomes) == [("merged", ("a", "b"), 1)]
    assert assigned(script.end("a", iterations=110)) == [("temporal", [("a", 110), ("b", 0)])]


def test_where_the_donor_is_done_before_the_merge_began_its_receiver_runs_alone(script):
    script.plan(share("a"))
    script.send(script.progressed("a", 100))
    (run,) = [script.job("a")["run_id"]]
    script.plan(share("a", "b"))
    outcomes = script.send(script.finished("a", 1_000, run=run))
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["a"]
    assert changes(outcomes) == [("job_over", ("b",), 1)]
    assert assigned(outcomes) == [("normal", [("b", 0)])]
    assert script.job("b")["merge"] is None


def test_where_one_of_two_is_done_before_both_have_their_new_gpus_the_other_goes_on_there(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 100))
    run = script.job("a")["run_id"]
    outcomes = script.plan(share("a", "b", mode="spatial", gpus=2))
    assert changes(outcomes) == [("reallocated", ("a", "b"), 2)]
    outcomes = script.send(script.finished("a", 200, run=run))
    assert assigned(outcomes) == []
    assert assigned(script.end("b", iterations=200)) == [("normal", [("b", 200)])]
    assert script.job("b")["merge"] is not None, "it has learned from the other"


def test_a_spatial_merge_that_a_plan_wants_where_a_temporal_one_is_begins_anew(script):
    script.plan(share("a", "b"))
    outcomes = script.plan(share("a", "b", mode="spatial"))
    assert ("merged", ("a", "b"), 1) in changes(outcomes)
    assert assigned(script.end("a", iterations=0)) == [("spatial", [("a", 0), ("b", 0)])]
    assert script.job("a")["merge"]["mode"] == "spatial"
    assert not script.job("a")["merge"]["is_donor"]


def test_a_merge_in_another_mode_is_left_where_a_job_has_progressed(script):
    script.plan(share("a", "b"))
    script.send(script.progressed("a", 100))
    (decided,) = of(PlanDecided, script.plan(share("a", "b", mode="spatial", gpus=2)))
    assert decided.dropped == 1
    assert script.job("a")["run_id"] is not None


def test_a_merge_for_which_no_gpus_are_left_is_none(script):
    script.ready("c")
    script.plan(share("c", gpus=3))
    outcomes = script.plan(share("c", gpus=3), share("a", "b", gpus=2))
    assert changes(outcomes) == []
    assert script.job("a")["merge"] is script.job("b")["merge"] is None


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_who_was_merged_with_a_withdrawn_job_goes_on_alone(script, mode):
    script.plan(share("a", "b", mode=mode))
    script.send(script.progressed("a", 100))
    outcomes = script.send(withdraw("b"))
    (released,) = of(TaskReleased, outcomes)
    assert (released.reason, released.job_ids) == ("withdrawn", ("b",))
    script.end("a", iterations=120)
    if mode == "spatial":
        script.end("b", iterations=0)
    outcomes = script.plan(share("a"))
    assert assigned(outcomes) == [("normal", [("a", 120)])]
    assert "b" not in script.bench.described["jobs"]


def test_a_receiver_that_fails_for_good_before_it_begins_ends_at_once(script):
    script.plan(share("a", "b"))
    outcomes = script.send(script.failed("b", permanent=True))
    assert changes(outcomes) == [("run_failed", ("a", "b"), 0)]
    assert [each.job_id for each in of(JobRefunded, outcomes)] == ["b"]
    assert assigned(script.end("a", iterations=120) + script.plan(share("a"))) == [("normal", [("a", 120)])]


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_a_merge_whose_node_is_lost_before_its_first_step_has_never_been(script, mode):
    script.plan(share("a", "b", mode=mode))
    outcomes = script.send(silent("n0"))
    assert changes(outcomes) == [("node_lost", ("a", "b"), 0)]
    assert script.job("a")["merge"] is script.job("b")["merge"] is None
    script.send(online("n0"))
    assert changes(script.plan(share("a", "b", mode=mode))) == [("merged", ("a", "b"), 1)]


def test_a_receiver_that_loses_its_node_before_its_first_step_begins_anew_unmerged(script):
    script.plan(share("a", "b"))
    script.send(script.finished("a", 1_000), silent("n0"), online("n0"))
    assert script.job("b")["merge"] is None
    assert assigned(script.plan(share("b"))) == [("normal", [("b", 0)])]


def test_two_jobs_that_lose_their_node_in_a_spatial_merge_go_on_apart(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 100), silent("n0"), online("n0"))
    asked = script.ask()
    assert [(unit.job_ids, unit.part) for unit in asked.problem.units] == [(("a",), "none"), (("b",), "none")]
    outcomes = script.answer(share("a"), share("b"), asked=asked)
    assert assigned(outcomes) == [("normal", [("a", 100)]), ("normal", [("b", 100)])]
    (told,) = of(MergeJudged, script.send(script.finished("b", 300)))
    assert (told.job_id, told.iterations) == ("b", 300)


def test_a_spatial_merge_that_lost_its_gpus_at_once_counts_as_one_if_it_had_trained(script):
    script.ready("c")
    script.plan(share("a", "b", mode="spatial"))
    script.plan(share("c"))
    script.end("a", iterations=40)
    script.end("b", iterations=0)
    assert script.job("a")["merge"] is not None
    assert script.job("b")["merge"] is None


def started(script: Script, job_id: str, iterations: int) -> RunStarted:
    progressed = script.progressed(job_id, iterations)
    return RunStarted(**progressed.model_dump(include={*RunStarted.model_fields} - {"dataset_samples"}))


def lost_in_a_spatial_merge(script: Script) -> None:
    """Both jobs were evaluated, and a worker process dies before their first checkpoint."""
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.evaluated("a", 1.0, 0.7), script.evaluated("b", 1.0, 0.7))
    script.send(script.failed("a"))
    script.send(script.failed("b", run=next(iter(ending_runs(script.job("b"))))))


def test_a_merge_of_which_a_job_has_no_weights_left_is_none(script):
    lost_in_a_spatial_merge(script)
    assert assigned(script.plan(share("a"), share("b"))) == [
        ("normal", [("a", 100)]),
        ("normal", [("b", 100)]),
    ]
    script.send(started(script, "a", 100), started(script, "b", 0))
    assert script.job("a")["merge"] is not None, "a checkpoint was there"
    assert (script.job("b")["merge"], script.job("b")["iterations"]) == (None, 0)
    outcomes = script.send(script.evaluated("b", 2.0, 0.5), script.finished("b", 500))
    assert of(MergeJudged, outcomes) == []
    assert script.kinds[script.job("a")["kind"]]["finished"] == 0
    kind = next(each for each in script.kinds.values() if each["finished"])
    assert (kind["finished_iterations"], kind["finished_accuracy"]) == (500, 0.5), (
        "what it had before is lost"
    )


def test_a_run_of_both_that_begins_anew_is_the_same_merge_watched_from_its_beginning(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.evaluated("b", 2.0, 0.7))
    assert script.job("b")["is_compared"]
    script.send(started(script, "b", 0))  # its node's processes have begun anew
    assert script.job("b")["merge"] is not None
    assert (script.job("b")["is_compared"], script.job("b")["merge"]["best_accuracy"]) == (False, None)


def test_the_start_of_a_receivers_run_is_the_beginning_of_its_merge(script):
    script.plan(share("a", "b"))
    script.send(started(script, "a", 0), started(script, "b", 0))
    script.send(script.evaluated("b", 1.0, 0.3, phase="donor"), script.finished("a", 1_000))
    script.send(started(script, "b", 0))
    assert script.job("b")["merge"]["best_accuracy"] == 0.3


def test_a_job_is_as_far_as_its_run_says_when_it_starts(script):
    script.plan(share("a"))
    script.send(script.evaluated("a", 1.0, 0.3), script.failed("a"))
    script.plan(share("a"))
    script.send(started(script, "a", 60))
    assert script.job("a")["iterations"] == 60


def test_both_go_on_where_a_run_of_one_fails(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 100))
    outcomes = script.send(script.failed("a"))
    assert changes(outcomes) == [("run_failed", ("a", "b"), 0)]
    script.end("b", iterations=110)
    outcomes = script.plan(share("a"), share("b"))
    assert assigned(outcomes) == [("normal", [("a", 100)]), ("normal", [("b", 110)])]


def test_what_a_run_reports_on_its_way_to_its_end_changes_nothing(script):
    script.plan(share("a"))
    run = script.job("a")["run_id"]
    script.plan()
    script.send(script.progressed("a", 50, run=run))
    assert script.job("a")["iterations"] == 0
    script.send(script.progressed("a", 60, complete=True, run=run))
    assert script.job("a")["samples_done"] == 60 * BATCH


def transfers_with(mode: str, **fields: object) -> int:
    """How many transfers there are between a job and one whose hyperparameters differ in these fields."""
    script = Script(modes=(mode,))
    script.ready("a")
    script.ready("b", hyperparameters=TuningHyperparameters(batch_size=BATCH, **fields))
    between = [each for each in script.ask().problem.transfers if each.donor != each.receiver]
    return len(between)


@pytest.mark.parametrize(
    "fields",
    [{"rank": 4}, {"alpha": 32.0}, {"target_modules": ("q_proj",)}, {"frozen_layers": 1}],
    ids=lambda fields: next(iter(fields)),
)
def test_jobs_whose_adapters_are_of_other_forms_are_not_merged(fields):
    assert transfers_with("temporal", **fields) == transfers_with("spatial", **fields) == 0


def test_jobs_that_compute_their_adapters_in_other_ways_are_not_trained_in_one_run():
    assert transfers_with("spatial", gradient_checkpointing=True) == 0
    assert transfers_with("temporal", gradient_checkpointing=True) == 2
    assert transfers_with("spatial", learning_rate=0.01) == 1


def test_the_order_of_target_modules_makes_no_other_form():
    both = TuningHyperparameters(target_modules=("q_proj", "v_proj")).needed_alike("temporal")
    assert both == TuningHyperparameters(target_modules=("v_proj", "q_proj")).needed_alike("temporal")


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_a_merge_that_fails_is_no_failure_of_its_jobs_which_go_on_alone(script, mode):
    script.plan(share("a", "b", mode=mode))
    script.send(script.failed("a"))
    script.end("a", "b", iterations=0)
    assert (script.job("a")["failures"], script.job("b")["failures"]) == (0, 0)
    units = script.ask().problem.units
    assert [(unit.job_ids, unit.part) for unit in units] == [(("a",), "none"), (("b",), "none")]


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_a_job_that_learns_in_a_merge_has_nothing_of_what_it_learned_alone_and_had_not_told(script, mode):
    script.plan(share("b"))
    run = script.job("b")["run_id"]
    outcomes = script.plan(share("a", "b", mode=mode))
    assert assigned(outcomes) == [], "the last run of b has not ended"
    outcomes = script.end("b", iterations=400)
    assert assigned(outcomes) == [(mode, [("a", 0), ("b", 0)])]
    (oldest,) = {order.oldest_generation for each in of(TaskAssigned, outcomes) for order in each.orders[1:]}
    assert oldest == 3, "it takes no checkpoint of its run alone"
    assert script.job("b")["run_id"] != run
    asked = script.ask()
    outcomes = script.answer(share("a", "b", mode=mode), asked=asked)
    assert [(each.reason, each.dropped) for each in of(PlanDecided, outcomes)] == [("applied", 0)]


def test_a_job_that_is_done_before_its_merge_begins_was_not_merged(script):
    script.plan(share("b"))
    run = script.job("b")["run_id"]
    script.plan(share("a", "b"))
    outcomes = script.send(script.finished("b", 1_000, run=run))
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["b"]
    assert of(MergeJudged, outcomes) == []
    assert assigned(outcomes) == [("normal", [("a", 0)])]
