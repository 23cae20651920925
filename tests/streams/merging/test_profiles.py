"""Profile runs: what they are for, what becomes of a job whose profile is of no use, and who needs none."""

import pytest

from schemas.base import Outcome
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn
from schemas.facts import Facts
from schemas.merging.commands import ProfileOrdered, TaskReleased
from schemas.merging.estimates import EstimateProblem
from schemas.merging.outcomes import JobForetold, PlanDecided, TaskChanged
from schemas.merging.reports import MeasuredStep
from schemas.merging.workload import TuningHyperparameters
from schemas.solves import SolveRequested
from tests.support.merging import answer, submit, withdraw
from tests.support.merging_script import BATCH, FALLING, Script, of, online, share, silent


@pytest.fixture
def script() -> Script:
    return Script()


def ordered(outcomes: list[Outcome]) -> list[tuple[str, int]]:
    return [(each.order.job_id, each.gpus) for each in of(ProfileOrdered, outcomes)]


def forecasts(outcomes: list[Outcome]) -> list[tuple[str, str, Facts]]:
    return [(each.job_id, each.reason, each.facts) for each in of(JobForetold, outcomes)]


def parts(asked: SolveRequested) -> dict[str, str]:
    """Return the parts that each job may have in a merge."""
    return {unit.job_ids[0]: unit.part for unit in asked.problem.units}


def test_new_job_is_profiled_then_awaits_plan(script):
    assert ordered(script.send(submit("a"))) == [("a", 1)]
    assert forecasts(script.send(script.profile("a"))) == [("a", "profiled", {})]
    assert forecasts(script.tick(5.0)) == [("a", "estimated", {})]
    assert parts(script.ask()) == {"a": "any"}


def asked_of(outcomes: list[Outcome]) -> EstimateProblem:
    (problem,) = (
        each.problem for each in of(SolveRequested, outcomes) if isinstance(each.problem, EstimateProblem)
    )
    return problem


@pytest.mark.parametrize("accuracy", [0.9, None])
def test_solver_gets_accuracies_of_profile_run(script, accuracy):
    script.send(submit("a"))
    script.send(script.profile("a", accuracy=0.2, accuracy_after_epoch=accuracy))
    (kind,) = asked_of(script.tick(5.0)).kinds
    assert (kind.accuracy_before, kind.accuracy_after_epoch) == (0.2, accuracy)


@pytest.mark.parametrize(("accuracy", "iterations"), [(0.85, 100), (0.75, 1_000), (None, 1_000)])
def test_profile_meeting_target_forecasts_one_epoch(accuracy, iterations):
    script = Script()
    script.estimates = answer
    script.send(submit("a"))
    script.send(script.profile("a", accuracy_after_epoch=accuracy))
    (told,) = of(JobForetold, script.tick(5.0))
    assert (told.reason, told.iterations) == ("estimated", iterations)
    (unit,) = script.ask().problem.units
    assert unit.iterations == iterations


def test_one_job_of_kind_is_profiled(script):
    assert ordered(script.send(submit("a"), submit("b"), submit("c", "ben"), submit("d", data="x"))) == [
        ("a", 1),
        ("d", 1),
    ]
    outcomes = script.send(script.profile("a"))
    assert forecasts(outcomes) == [("a", "profiled", {}), ("b", "kind_known", {}), ("c", "kind_known", {})]
    assert ordered(outcomes) == []
    outcomes = script.send(submit("e"))
    (admitted,) = of(JobAdmitted, outcomes)
    assert admitted.evidence.is_profiled
    assert ordered(outcomes) == []


def test_profile_of_kind_outlives_its_jobs(script):
    script.ready("a")
    script.plan(share("a"))
    assert of(JobCompleted, script.send(script.finished("a", 400)))
    outcomes = script.send(submit("b", data="a", accuracy=None))
    assert ordered(outcomes) == []
    (told,) = of(JobForetold, outcomes)
    assert (told.reason, told.iterations) == ("kind_finished", 400)


def test_next_of_kind_is_profiled_after_withdrawal(script):
    script.send(submit("a"), submit("b"))
    outcomes = script.send(withdraw("a"))
    (released,) = of(TaskReleased, outcomes)
    assert (released.reason, released.job_ids) == ("withdrawn", ("a",))
    assert of(JobWithdrawn, outcomes) == [], "its run has not ended yet"
    assert ordered(script.tick(5.0)) == [("b", 1)]
    assert [each.job_id for each in of(JobWithdrawn, script.end("a", iterations=0))] == ["a"]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"losses": tuple(reversed(FALLING))}, {"case": "losses_do_not_fall"}),
        ({"losses": (1.0,) * 12}, {"case": "losses_do_not_fall", "first_loss": 1.0, "last_loss": 1.0}),
        ({"losses": (2.0, 1.0)}, {"case": "few_losses", "losses": 2, "least_losses": 3}),
        (
            {"embedding": (1.0, 2.0)},
            {"case": "other_length", "field": "embedding", "values": 2, "known_values": 3},
        ),
        ({"embedding": (0.0, 0.0, 0.0)}, {"case": "all_zero", "field": "embedding"}),
    ],
)
def test_unusable_profile_names_field_and_runs_unmerged(script, changes, facts):
    script.ready("other")
    script.send(submit("a", accuracy=None), submit("b", accuracy=None))
    outcomes = script.send(script.profile("a", **changes))
    (job_id, reason, told), (twin, known, _) = forecasts(outcomes)
    assert (job_id, reason) == ("a", "unusable_profile")
    assert facts.items() <= told.items()
    assert (twin, known) == ("b", "kind_known")
    asked = script.ask()
    assert parts(asked) == {"other": "any", "a": "none", "b": "none"}
    (decided,) = of(PlanDecided, script.answer(share("other", "a"), share("b"), asked=asked))
    assert decided.dropped == 1
    assert script.job("a")["task"] is None, "whatever a plan says"
    script.plan(share("a"))
    assert of(JobCompleted, script.send(script.finished("a", 1_000)))


def test_job_without_features_runs_unmerged():
    script = Script(transferability="task2feat")
    script.send(submit("a"))
    ((_, reason, facts),) = forecasts(script.send(script.profile("a")))
    assert (reason, facts) == ("unusable_profile", {"case": "missing", "field": "features"})


def test_unfittable_curve_names_its_field(script):
    script.curve_fault = "flat_loss_curve"
    script.send(submit("a"))
    script.send(script.profile("a"))
    assert forecasts(script.tick(5.0)) == [("a", "unusable_profile", {"case": "flat_loss_curve"})]
    assert parts(script.ask()) == {"a": "none"}


def test_thrice_failed_profile_runs_unmerged(script):
    script.send(submit("a", accuracy=None))
    for _ in range(2):
        assert ordered(script.send(script.failed("a"))) == [("a", 1)]
    assert forecasts(script.send(script.failed("a"))) == [
        ("a", "profile_failed", {"node": "n0", "run_id": "3/a"})
    ]
    asked = script.ask()
    assert parts(asked) == {"a": "none"}
    script.answer(share("a"), asked=asked)
    assert of(JobCompleted, script.send(script.finished("a", 1_000)))


def test_next_of_kind_replaces_failed_profile(script):
    script.send(submit("a"), submit("b"))
    for _ in range(2):
        script.send(script.failed("a"))
    assert ordered(script.send(script.failed("a"))) == [("b", 1)]


def test_unprofilable_job_is_refunded(script):
    script.send(submit("a"))
    (refunded,) = of(JobRefunded, script.send(script.failed("a", permanent=True)))
    assert (refunded.reason, refunded.facts) == ("run_failed", {"node": "n0", "run_id": "1/a"})
    assert "a" not in script.bench.described["jobs"]


def test_lost_profile_run_restarts_without_failure():
    script = Script(2, 1)
    script.send(submit("a"))
    for _ in range(4):
        (node,) = script.job("a")["members"]
        assert ordered(script.send(silent(node))) == [("a", 1)]
        script.send(online(node))
    assert script.job("a")["failures"] == 0


def test_pipeline_is_profiled_on_four_gpus():
    script = Script(2, 4)
    script.send(submit("a"), submit("b", data="b"))
    script.send(submit("p", data="p", pipeline=True))
    assert script.job("p")["members"] == {"n1": 4}
    script.send(script.profile("p"))
    assert [unit.part for unit in script.ask().problem.units] == ["none"]


def test_pipeline_without_node_has_one_vacated():
    script = Script(2, 4)
    small = [f"s{number}" for number in range(9)]
    script.ready(*small)
    script.plan(*(share(job_id) for job_id in small[:8]))
    assert ordered(script.send(submit("p", data="p", pipeline=True))) == []
    script.send(script.finished("s5", 1_000))
    assert ordered(script.tick(script.time_s + 115.0)) == []
    outcomes = script.tick(script.time_s + 5.0)
    assert ordered(outcomes) == [("p", 4)]
    preempted = [each for each in of(TaskChanged, outcomes) if each.reason == "preempted"]
    for each in preempted:
        assert each.facts == {"case": "profile_run", "job_id": "p", "node": "n1"}
    assert len(preempted) == 3


@pytest.mark.parametrize(("gpus", "waits_s"), [(1, 120.0), (3, 120.0), (4, 125.0)])
def test_job_is_profiled_within_interval_despite_few_gpus(gpus, waits_s):
    script = Script(gpus=gpus)
    script.ready(*(f"long{number}" for number in range(gpus)))
    script.plan(*(share(f"long{number}") for number in range(gpus)))
    began_s = script.time_s
    script.send(submit("new", data="new"))
    while script.job("new")["stage"] == "new":
        script.tick(script.time_s + 5.0)
        if script.asked is not None:
            script.send(answer(script.asked))
            script.asked = None
    assert script.time_s - began_s <= waits_s


def test_many_kinds_of_user_delay_no_other_profile():
    script = Script(gpus=1)
    script.send(*(submit(f"flood{number}", "eve", data=f"flood{number}") for number in range(50)))
    script.send(submit("b", "ben", data="b"))
    profiled = []
    while "b" not in profiled:
        (job_id,) = (job["job_id"] for job in script.bench.jobs if job["state"] == "profiling")
        profiled.append(job_id)
        script.send(script.profile(job_id))
    assert profiled == ["flood0", "b"]


def step_of(step_s: float, gpus: int = 1, accumulation: int = 1) -> MeasuredStep:
    return MeasuredStep(
        gpus=gpus,
        nodes=1,
        micro_batch_size=BATCH // accumulation,
        accumulation_steps=accumulation,
        step_s=step_s,
        exchange_s=0.0,
    )


def test_long_sequences_leave_forecast_of_short_ones(script):
    long = TuningHyperparameters(batch_size=BATCH, sequence_length=4_096)
    script.send(submit("long", data="a", hyperparameters=long), submit("short", data="b"))
    script.send(script.profile("long", steps=(step_of(12.0),)))
    (forecast,) = of(JobForetold, script.send(script.profile("short", steps=(step_of(0.1),))))[:1]
    assert forecast.step_s == pytest.approx(0.1)


def test_first_pipeline_shows_nothing_of_others(script):
    script.send(submit("piped", data="a", pipeline=True))
    outcomes = script.send(script.profile("piped", steps=(step_of(8.0, gpus=4, accumulation=4),)))
    assert of(JobForetold, outcomes)[0].step_s == pytest.approx(8.0)
    script.send(submit("one", data="b"))
    outcomes = script.send(script.profile("one", steps=(step_of(0.1),)))
    assert of(JobForetold, outcomes)[0].step_s == pytest.approx(0.1)
