"""Two jobs in one task: from the plan that merges them to the end of both."""

import pytest

from schemas.decisions import JobCompleted, JobRefunded
from schemas.fleet import RunStarted
from schemas.merging.commands import TaskAssigned, TaskReleased
from schemas.merging.outcomes import MergeEvaluated, PlanDecided, TaskChanged
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


def test_receiver_continues_where_donor_ends(script):
    outcomes = script.plan(share("a", "b"))
    assert changes(outcomes) == [("merged", ("a", "b"), 1)]
    assert assigned(outcomes) == [("temporal", [("a", 0), ("b", 0)])]
    (change,) = of(TaskChanged, outcomes)
    assert [(each.job_id, each.iterations, each.iterations_alone) for each in change.foretold] == [
        ("a", 1_000, 1_000),
        ("b", 1_000, 1_000),  # without a target it does all of them
    ]
    outcomes = script.send(script.finished("a", 1_000))
    assert changes(outcomes) == [("job_over", ("b",), 1)]
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["a"]
    assert assigned(outcomes) == [], "its nodes know what comes next"
    outcomes = script.send(script.finished("b", 500))
    (told,) = of(MergeEvaluated, outcomes)
    assert (told.reason, told.iterations, told.iterations_alone) == ("finished", 500, 1_000)
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["b"]


def test_slower_job_of_spatial_merge_continues_alone(script):
    script.plan(share("a", "b", mode="spatial"))
    outcomes = script.send(script.finished("a", 300))
    assert changes(outcomes) == [("job_over", ("b",), 1)]
    assert [each.job_id for each in of(MergeEvaluated, outcomes)] == ["a"]
    assert [each.job_id for each in of(MergeEvaluated, script.send(script.finished("b", 400)))] == ["b"]


def test_unstarted_receiver_keeps_gpus_of_donor(script):
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


def test_plan_may_split_merge_before_receiver(script):
    script.plan(share("a", "b"))
    script.send(script.progressed("a", 100))
    outcomes = script.plan(share("a"), share("b"))
    assert ("separated", ("a", "b"), 0) in changes(outcomes)
    assert of(MergeEvaluated, outcomes) == [], "there was no merge"
    assert assigned(outcomes) == [("normal", [("b", 0)])], "the other waits for its last run's end"
    assert assigned(script.end("a", iterations=120)) == [("normal", [("a", 120)])]
    assert script.job("a")["merge"] is script.job("b")["merge"] is None


def test_job_with_progress_may_only_be_donor(script):
    script.plan(share("a"))
    script.send(script.progressed("a", 100))
    asked = script.ask()
    assert {unit.job_ids: unit.part for unit in asked.problem.units} == {("a",): "donor", ("b",): "any"}
    (decided,) = of(PlanDecided, script.answer(share("b", "a"), asked=asked))
    assert (decided.reason, decided.dropped) == ("out_of_date", 1)
    outcomes = script.plan(share("a", "b"))
    assert changes(outcomes) == [("merged", ("a", "b"), 1)]
    assert assigned(script.end("a", iterations=110)) == [("temporal", [("a", 110), ("b", 0)])]


def test_receiver_of_completed_donor_runs_alone(script):
    script.plan(share("a"))
    script.send(script.progressed("a", 100))
    (run,) = [script.job("a")["run_id"]]
    script.plan(share("a", "b"))
    outcomes = script.send(script.finished("a", 1_000, run=run))
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["a"]
    assert changes(outcomes) == [("job_over", ("b",), 1)]
    assert assigned(outcomes) == [("normal", [("b", 0)])]
    assert script.job("b")["merge"] is None


def test_remaining_job_uses_new_gpus_alone(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 100))
    run = script.job("a")["run_id"]
    outcomes = script.plan(share("a", "b", mode="spatial", gpus=2))
    assert changes(outcomes) == [("reallocated", ("a", "b"), 2)]
    outcomes = script.send(script.finished("a", 200, run=run))
    assert assigned(outcomes) == []
    assert assigned(script.end("b", iterations=200)) == [("normal", [("b", 200)])]
    assert script.job("b")["merge"] is not None, "it has learned from the other"


def test_planned_spatial_merge_restarts_temporal_one(script):
    script.plan(share("a", "b"))
    outcomes = script.plan(share("a", "b", mode="spatial"))
    assert ("merged", ("a", "b"), 1) in changes(outcomes)
    assert assigned(script.end("a", iterations=0)) == [("spatial", [("a", 0), ("b", 0)])]
    assert script.job("a")["merge"]["mode"] == "spatial"
    assert not script.job("a")["merge"]["is_donor"]


def test_merge_with_progress_keeps_its_mode(script):
    script.plan(share("a", "b"))
    script.send(script.progressed("a", 100))
    (decided,) = of(PlanDecided, script.plan(share("a", "b", mode="spatial", gpus=2)))
    assert decided.dropped == 1
    assert script.job("a")["run_id"] is not None


def test_merge_without_gpus_is_not_made(script):
    script.ready("c")
    script.plan(share("c", gpus=3))
    outcomes = script.plan(share("c", gpus=3), share("a", "b", gpus=2))
    assert changes(outcomes) == []
    assert script.job("a")["merge"] is script.job("b")["merge"] is None


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_partner_of_withdrawn_job_continues_alone(script, mode):
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


def test_permanently_failed_receiver_ends_at_once(script):
    script.plan(share("a", "b"))
    outcomes = script.send(script.failed("b", permanent=True))
    assert changes(outcomes) == [("run_failed", ("a", "b"), 0)]
    assert [each.job_id for each in of(JobRefunded, outcomes)] == ["b"]
    assert assigned(script.end("a", iterations=120) + script.plan(share("a"))) == [("normal", [("a", 120)])]


@pytest.mark.parametrize("steps", [0, 100])
@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_lost_pair_resumes_in_its_mode(script, mode, steps):
    script.plan(share("a", "b", mode=mode))
    if steps:
        script.send(script.progressed("a", steps))
    outcomes = script.send(silent("n0"))
    assert changes(outcomes) == [("node_lost", ("a", "b"), 0)]
    merges = [script.job(job_id)["merge"] for job_id in ("a", "b")]
    script.send(online("n0"))
    outcomes = script.plan(share("a", "b", mode=mode))
    assert changes(outcomes) == [("resumed", ("a", "b"), 1)]
    assert assigned(outcomes) == [(mode, [("a", steps), ("b", 0)])]
    assert [script.job(job_id)["merge"] for job_id in ("a", "b")] == [
        {**merge, "place": None} for merge in merges
    ]
    (donor, receiver) = (script.job(job_id)["merge"] for job_id in ("a", "b"))
    assert (donor["partner"], receiver["partner"]) == ("b", "a")


def test_plan_may_part_lost_temporal_pair(script):
    script.plan(share("a", "b"))
    script.send(script.progressed("a", 100), silent("n0"), online("n0"))
    assert assigned(script.plan(share("b"))) == [("normal", [("b", 0)])]
    assert script.job("a")["merge"] is script.job("b")["merge"] is None
    assert assigned(script.plan(share("a"), share("b")))[0] == ("normal", [("a", 100)])


def test_partner_of_lost_job_continues_alone(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 50), silent("n0"), online("n0"))
    script.send(withdraw("b"))
    assert assigned(script.plan(share("a"))) == [("normal", [("a", 100)])]


def test_receiver_lost_before_first_step_restarts_unmerged(script):
    script.plan(share("a", "b"))
    script.send(script.finished("a", 1_000), silent("n0"), online("n0"))
    assert script.job("b")["merge"] is None
    assert assigned(script.plan(share("b"))) == [("normal", [("b", 0)])]


def test_lost_spatial_merge_waits_as_one(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 100), silent("n0"), online("n0"))
    asked = script.ask()
    assert [(unit.job_ids, unit.part, unit.gpus) for unit in asked.problem.units] == [(("a", "b"), "none", 0)]
    outcomes = script.answer(share("a"), share("b"), asked=asked)
    assert assigned(outcomes) == [], "neither has a checkpoint of its own"
    outcomes = script.plan(share("a", "b", mode="spatial"))
    assert assigned(outcomes) == [("spatial", [("a", 100), ("b", 100)])]
    (told,) = of(MergeEvaluated, script.send(script.finished("b", 300)))
    assert (told.job_id, told.iterations) == ("b", 300)


def test_trained_spatial_merge_counts_after_loss(script):
    script.ready("c")
    script.plan(share("a", "b", mode="spatial"))
    script.plan(share("c"))
    script.end("a", iterations=40)
    script.end("b", iterations=0)
    assert script.job("a")["merge"] is not None
    assert assigned(script.plan(share("a", "b", mode="spatial"))) == [("spatial", [("a", 40), ("b", 0)])]


def started(script: Script, job_id: str, iterations: int) -> RunStarted:
    progressed = script.progressed(job_id, iterations)
    return RunStarted(**progressed.model_dump(include={*RunStarted.model_fields} - {"dataset_samples"}))


def lost_in_a_spatial_merge(script: Script) -> None:
    """Both jobs were evaluated, and a worker process dies before their first checkpoint."""
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.evaluated("a", 1.0, 0.7), script.evaluated("b", 1.0, 0.7))
    script.send(script.failed("a"))
    script.send(script.failed("b", run=next(iter(ending_runs(script.job("b"))))))


def test_merge_without_weights_is_not_made(script):
    lost_in_a_spatial_merge(script)
    assert assigned(script.plan(share("a"), share("b"))) == [
        ("normal", [("a", 100)]),
        ("normal", [("b", 100)]),
    ]
    script.send(started(script, "a", 100), started(script, "b", 0))
    assert script.job("a")["merge"] is not None, "a checkpoint was there"
    assert (script.job("b")["merge"], script.job("b")["iterations"]) == (None, 0)
    outcomes = script.send(script.evaluated("b", 2.0, 0.5), script.finished("b", 500))
    assert of(MergeEvaluated, outcomes) == []
    assert script.kinds[script.job("a")["kind"]]["finished"] == 0
    kind = next(each for each in script.kinds.values() if each["finished"])
    assert (kind["finished_iterations"], kind["finished_accuracy"]) == (500, 0.5), (
        "what it had before is lost"
    )


def test_restarted_joint_run_is_same_merge(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.evaluated("b", 2.0, 0.7))
    assert script.job("b")["is_compared"]
    script.send(started(script, "b", 0))  # its node's processes have restarted
    assert script.job("b")["merge"] is not None
    assert (script.job("b")["is_compared"], script.job("b")["merge"]["best_accuracy"]) == (False, None)


def test_start_of_receiver_run_begins_merge(script):
    script.plan(share("a", "b"))
    script.send(started(script, "a", 0), started(script, "b", 0))
    script.send(script.evaluated("b", 1.0, 0.3, phase="donor"), script.finished("a", 1_000))
    script.send(started(script, "b", 0))
    assert script.job("b")["merge"]["best_accuracy"] == 0.3


def test_progress_of_job_is_that_of_started_run(script):
    script.plan(share("a"))
    script.send(script.evaluated("a", 1.0, 0.3), script.failed("a"))
    script.plan(share("a"))
    script.send(started(script, "a", 60))
    assert script.job("a")["iterations"] == 60


def test_both_continue_after_failure_of_one(script):
    script.plan(share("a", "b", mode="spatial"))
    script.send(script.progressed("a", 100), script.progressed("b", 100))
    outcomes = script.send(script.failed("a"))
    assert changes(outcomes) == [("run_failed", ("a", "b"), 0)]
    script.end("b", iterations=110)
    outcomes = script.plan(share("a"), share("b"))
    assert assigned(outcomes) == [("normal", [("a", 100)]), ("normal", [("b", 110)])]


def test_reports_of_ending_run_change_nothing(script):
    script.plan(share("a"))
    run = script.job("a")["run_id"]
    script.plan()
    script.send(script.progressed("a", 50, run=run))
    assert script.job("a")["iterations"] == 0
    script.send(script.progressed("a", 60, complete=True, run=run))
    assert script.job("a")["samples_done"] == 60 * BATCH


def transfers_with(mode: str, **fields: object) -> int:
    """Return the number of transfers between a job and one whose hyperparameters differ in these fields."""
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
def test_jobs_with_other_adapter_shapes_are_unmerged(fields):
    assert transfers_with("temporal", **fields) == transfers_with("spatial", **fields) == 0


def test_jobs_with_other_computation_share_no_run():
    assert transfers_with("spatial", gradient_checkpointing=True) == 0
    assert transfers_with("temporal", gradient_checkpointing=True) == 2
    assert transfers_with("spatial", learning_rate=0.01) == 1


def test_order_of_target_modules_is_irrelevant():
    both = TuningHyperparameters(target_modules=("q_proj", "v_proj")).needed_alike("temporal")
    assert both == TuningHyperparameters(target_modules=("v_proj", "q_proj")).needed_alike("temporal")


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_failed_merge_counts_for_no_job(script, mode):
    script.plan(share("a", "b", mode=mode))
    script.send(script.failed("a"))
    script.end("a", "b", iterations=0)
    assert (script.job("a")["failures"], script.job("b")["failures"]) == (0, 0)
    script.ready("c")
    asked = script.ask()
    problem = asked.problem
    assert [(unit.job_ids, unit.part) for unit in problem.units] == [((job_id,), "any") for job_id in "abc"]
    offered = {(one.mode, one.donor, one.receiver) for one in problem.transfers}
    a, b, c = range(3)
    assert (mode, a, b) not in offered, "the pair is barred"
    assert (mode, b, a) in offered or mode == "spatial"
    assert {(mode, a, c), (mode, b, c)} <= offered, "its jobs are not"
    outcomes = script.answer(share("a", "b", mode=mode), share("c"), asked=asked)
    assert assigned(outcomes) == [("normal", [("c", 0)])]


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_receiver_loses_unreported_solo_progress(script, mode):
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


def test_job_completed_before_merge_was_not_merged(script):
    script.plan(share("b"))
    run = script.job("b")["run_id"]
    script.plan(share("a", "b"))
    outcomes = script.send(script.finished("b", 1_000, run=run))
    assert [each.job_id for each in of(JobCompleted, outcomes)] == ["b"]
    assert of(MergeEvaluated, outcomes) == []
    assert assigned(outcomes) == [("normal", [("a", 0)])]
