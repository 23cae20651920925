"""When a solver is asked, and what becomes of its answer: in time, late, empty, or none at all."""

import pytest

from schemas.base import Outcome
from schemas.merging.commands import LoaderPrewarmed, TaskAssigned
from schemas.merging.estimates import EstimateProblem
from schemas.merging.outcomes import PlanDecided, TaskChanged
from schemas.merging.problems import MergeProblem, RivalProblem
from schemas.solves import SolveRequested
from tests.support.merging import merging_cell, submit, tick, withdraw
from tests.support.merging_script import Script, of, share


@pytest.fixture
def script() -> Script:
    script = Script()
    script.ready("a", "b")
    return script


def decided(outcomes: list[Outcome]) -> tuple[str, int, int]:
    (told,) = of(PlanDecided, outcomes)
    return told.reason, told.jobs, told.dropped


def changes(outcomes: list[Outcome]) -> list[tuple[str, tuple[str, ...], int]]:
    return [(each.reason, each.job_ids, each.gpus) for each in of(TaskChanged, outcomes)]


def plans(outcomes: list[Outcome]) -> list[SolveRequested]:
    return [each for each in of(SolveRequested, outcomes) if isinstance(each.problem, MergeProblem)]


def test_plan_is_requested_each_interval_with_jobs(script):
    script.plan(share("a"), share("b"))
    for number in range(2, 5):
        asked = script.ask()
        assert asked.request_id.startswith("plan-")
        assert script.time_s == number * 120.0
        assert changes(script.answer(share("a"), share("b"), asked=asked)) == []
    script.send(script.finished("a", 1_000), script.finished("b", 1_000))
    assert plans(script.tick(script.time_s + 120.0)) == []


def test_idle_gpus_request_plan_after_change():
    script = Script(idle_interval_s=10.0)
    script.ready("a")
    assert plans(script.tick(15.0))
    script.answer(share("a"), asked=script.asked)
    assert plans(script.tick(30.0)) == [], "nothing has changed"
    script.send(script.finished("a", 1_000))
    script.ready("b")
    assert script.asked.problem.units[0].job_ids == ("b",), "a job has come"


def test_plan_that_no_longer_fits_requests_another():
    script = Script(idle_interval_s=10.0)
    script.ready("a")
    assert plans(script.tick(15.0))
    script.answer(share("gone"), asked=script.asked)
    assert plans(script.tick(30.0)), "though nothing has changed"


def test_question_describes_jobs(script):
    script.ready("c")
    script.plan(share("a", gpus=2), share("b", "c"))
    script.send(script.progressed("a", 250))
    problem = script.ask().problem
    units = {unit.job_ids[0]: unit for unit in problem.units}
    assert (units["a"].gpus, units["a"].iterations, units["a"].part) == (2, 750, "donor")
    assert (units["b"].gpus, units["b"].follower, units["b"].part) == (1, "c", "any")
    assert (units["c"].gpus, units["c"].waited_s) == (0, 240.0), "it waits for its donor"
    assert problem.gpus == 4


def test_wait_of_job_counts_while_running(script):
    """Else those that wait would soon look more urgent than one that has just got its turn."""
    script.plan(share("a"))
    script.plan(share("b"))
    script.end("a", iterations=100)
    units = {unit.job_ids[0]: unit.waited_s for unit in script.ask().problem.units}
    assert units == {"a": 240.0, "b": 240.0}


def test_wait_of_joint_jobs_counts_half(script):
    script.plan(share("a"))
    script.ready("c", "d")
    script.plan(share("a"))
    script.plan(share("a"), share("c", "d", mode="spatial"))
    (unit,) = (unit for unit in script.ask().problem.units if len(unit.job_ids) == 2)
    assert unit.waited_s == (script.job("c")["waited_s"] + script.job("d")["waited_s"]) / 2 > 0


@pytest.mark.parametrize("scheme", ["srtf", "tiresias", "optimus", "pollux", "themis", "titan"])
def test_receiver_waits_and_donor_runs_for_rival(scheme):
    script = Script()
    script.ready("a", "b")
    script.plan(share("a", "b"))
    script.reconfigure(scheme=scheme)
    problem = script.ask().problem
    assert isinstance(problem, RivalProblem)
    assert problem.scheme == scheme
    assert [(job.job_id, job.gpus, job.waited_s) for job in problem.jobs] == [
        ("a", 1, 120.0),
        ("b", 0, 240.0),
    ]


def test_empty_solution_leaves_last_plan(script):
    script.plan(share("a"))
    asked = script.ask()
    outcomes = script.send(script.solved(asked, None))
    assert decided(outcomes) == ("kept_last", 0, 0)
    assert changes(outcomes) == []
    assert script.job("a")["task"] is not None
    assert changes(script.plan(share("a"), share("b"))) == [("started", ("b",), 1)]


def test_outdated_parts_of_late_answer_are_dropped(script):
    script.ready("c")
    script.plan(share("a"))
    asked = script.ask()
    script.send(script.finished("a", 1_000), withdraw("b"))
    script.tick(script.time_s + 60.0)
    outcomes = script.answer(share("a", gpus=2), share("b"), share("c"), asked=asked)
    assert decided(outcomes) == ("applied", 1, 2)
    assert changes(outcomes) == [("started", ("c",), 1)]


def test_late_answer_changes_no_newer_task(script):
    asked = script.ask()
    for _ in range(3):
        script.tick(script.time_s + 120.0)
    script.answer(share("a"), asked=script.asked)
    outcomes = script.answer(share("b", gpus=4), asked=asked)
    assert [(each.reason, each.facts["request_id"]) for each in outcomes] == [
        ("unknown_solve", asked.request_id)
    ]


def test_missing_answer_is_requested_again(script):
    first = script.ask()
    asked = [plans(script.tick(script.time_s + 120.0)) for _ in range(3)]
    assert [len(each) for each in asked] == [0, 0, 1]
    assert asked[-1][0].request_id != first.request_id


def test_plan_beyond_gpus_is_applied_partly(script):
    outcomes = script.plan(share("a", gpus=4), share("b", gpus=1))
    assert changes(outcomes) == [("started", ("a",), 4)]
    assert decided(outcomes) == ("applied", 2, 1)


def test_released_gpus_are_reassigned_at_once(script):
    script.plan(share("a", gpus=4))
    outcomes = script.plan(share("a", gpus=2), share("b", gpus=2))
    assert changes(outcomes) == [("reallocated", ("a",), 2), ("started", ("b",), 2)]
    assert [each.orders[0].job_id for each in of(TaskAssigned, outcomes)] == ["b"]
    (assigned,) = of(TaskAssigned, script.end("a", iterations=90))
    assert (assigned.orders[0].resume_iterations, assigned.generation) == (90, 3)


class TestAhead:
    """Plans are asked for 30 s before their interval."""

    @pytest.fixture
    def script(self) -> Script:
        script = Script(prewarm_s=30.0)
        script.ready("a", "b")
        return script

    def test_loaders_are_prepared_before_jobs_start(self, script):
        (asked,) = plans(script.tick(90.0))
        outcomes = script.answer(share("a", gpus=2), asked=asked)
        (prewarmed,) = outcomes
        assert isinstance(prewarmed, LoaderPrewarmed)
        assert (prewarmed.order.job_id, prewarmed.node, prewarmed.starts_s) == ("a", "n0", 120.0)
        assert script.tick(115.0) == []
        outcomes = script.tick(120.0)
        assert decided(outcomes) == ("applied", 1, 0)
        assert changes(outcomes) == [("started", ("a",), 2)]

    def test_continuing_job_needs_no_loader(self, script):
        script.answer(share("a"), asked=plans(script.tick(90.0))[0])
        script.tick(120.0)
        outcomes = script.answer(share("a", gpus=2), share("b"), asked=plans(script.tick(210.0))[0])
        assert [each.order.job_id for each in of(LoaderPrewarmed, outcomes)] == ["b"]

    def test_answer_after_interval_applies_on_arrival(self, script):
        (asked,) = plans(script.tick(90.0))
        assert plans(script.tick(120.0)) == []
        outcomes = script.answer(share("a"), asked=asked)
        assert of(LoaderPrewarmed, outcomes) == []
        assert changes(outcomes) == [("started", ("a",), 1)]

    def test_jobs_that_ended_since_are_left(self, script):
        script.answer(share("a"), share("b"), asked=plans(script.tick(90.0))[0])
        script.send(withdraw("a"))
        outcomes = script.tick(120.0)
        assert decided(outcomes) == ("applied", 1, 1)
        assert changes(outcomes) == [("started", ("b",), 1)]

    def test_empty_answer_prepares_nothing(self, script):
        (asked,) = plans(script.tick(90.0))
        assert script.send(script.solved(asked, None)) == []
        assert decided(script.tick(120.0)) == ("kept_last", 0, 0)

    def test_waiting_answer_takes_no_room_without_jobs(self, script):
        script.answer(share("a"), share("b"), asked=plans(script.tick(90.0))[0])
        script.send(withdraw("a"), withdraw("b"))
        assert script.bench.cell.live_jobs_bytes == 0

    def test_nor_does_one_that_comes_then(self, script):
        (asked,) = plans(script.tick(90.0))
        script.send(withdraw("a"), withdraw("b"))
        assert decided(script.answer(share("a"), asked=asked)) == ("out_of_date", 0, 1)
        assert script.bench.cell.live_jobs_bytes == 0


def test_jobs_of_plan_share_fitting_node():
    script = Script(cell=merging_cell(3, 4, interval_s=120.0, idle_interval_s=None, prewarm_s=0.0))
    script.ready("a", "b", "c")
    outcomes = script.plan(share("a", gpus=8), share("b", gpus=3), share("c", gpus=1))
    members = {each.job_ids[0]: {m.node: m.gpus for m in each.members} for each in of(TaskChanged, outcomes)}
    assert members == {"a": {"n0": 4, "n1": 4}, "b": {"n2": 3}, "c": {"n2": 1}}
    assert [each.node for each in of(TaskAssigned, outcomes)] == ["n0", "n1", "n2", "n2"]


def test_running_job_wins_over_equal_one():
    """The solver's own answers: no job is done sooner if the two take turns."""
    script = Script(1, 1, prewarm_s=0.0)
    script.ready("a", "b", samples=80_000, sharing=False)
    (first,) = of(TaskChanged, script.solve())
    assert first.reason == "started"
    for _ in range(5):
        assert changes(script.solve()) == []


def test_failed_estimate_is_requested_after_interval():
    script = Script()
    script.bench.send(submit("a", data="a"))
    asked = []

    def ask(time_s: float) -> None:
        for request in of(SolveRequested, script.bench.send(tick(time_s))):
            if isinstance(request.problem, EstimateProblem):
                asked.append(time_s)
                script.bench.send(script.solved(request, None))

    script.bench.send(script.profile("a"))
    for number in range(1, 51):
        ask(5.0 * number)
    assert asked == [5.0, 125.0, 245.0]
