"""Decisions of a zone account for all GPUs: every loss of a GPU has a decision."""

from infra.simulation.simulator import SimulatedRun, Simulation
from infra.workloads.drawing import draw_jobs
from schemas.codec import Decision
from schemas.decisions import JobCompleted
from schemas.fleet import NodeOffline
from schemas.merging.commands import TaskReleased
from schemas.merging.outcomes import JobForetold, MergeEvaluated, TaskChanged
from tests.infra.simulation.merging.small import (
    CELL,
    SmallTruth,
    merging_cell,
    simulated,
    submit,
    withdraw,
)


def changes(run: SimulatedRun) -> list[TaskChanged]:
    return [each.outcome for each in run.decisions if isinstance(each.outcome, TaskChanged)]


def is_change(decision: Decision) -> bool:
    return isinstance(decision.outcome, TaskChanged)


def test_job_without_target_is_forecast_all_iterations():
    losses = tuple(2.0 * 0.7**iteration + 0.5 for iteration in range(8))
    job = submit("one", target={"accuracy": None, "most_iterations": 1_000})
    run = simulated(merging_cell(), [(1.0, job)], SmallTruth(losses=losses))
    told = [each.outcome for each in run.decisions if isinstance(each.outcome, JobForetold)]
    assert [each.reason for each in told] == ["profiled", "estimated"]
    assert told[0].iterations == 1_000
    assert told[1].iterations == 1_000


def test_jobs_wait_briefly_for_merge_estimates():
    # Else one would be begun alone, and have progress by the time that its merge is forecast.
    cell = merging_cell(modes=("spatial",), interval_s=120.0, prewarm_s=30.0)
    run = simulated(cell, [(1.0, submit("one")), (2.0, submit("two"))], SmallTruth({("a", "a"): 3}))
    first = changes(run)[0]
    assert (first.reason, first.job_ids) == ("merged", ("one", "two"))


def test_lost_chain_before_receiver_is_no_merge():
    # The node is lost while "one" trains, which is then withdrawn, so that "two" runs alone.
    inputs = [
        *((1.0, submit("zero")), (20.0, submit("one")), (21.0, submit("two"))),
        *((651.0, NodeOffline(cell=CELL, node="n0")), (652.0, withdraw("one"))),
    ]
    run = simulated(merging_cell(modes=("temporal",)), inputs, SmallTruth({("a", "a"): 3}))
    (lost,) = [each for each in changes(run) if each.reason == "node_lost"]
    assert (lost.job_ids, lost.mode) == (("one", "two"), "temporal")
    assert changes(run)[-1].job_ids == ("two",)
    assert not any(isinstance(each.outcome, MergeEvaluated) for each in run.decisions)


def test_job_losing_gpus_gets_release():
    """In a busy zone of drawn jobs, a task that loses GPUs is released in the same event."""
    cell = merging_cell(nodes=2, gpus=4, interval_s=120.0)
    jobs = draw_jobs(cell, 3, jobs=24, span_s=1_800.0)
    run = Simulation(cell, jobs).run()
    by_cause: dict[tuple[str, int], set[str]] = {}
    for decision in run.decisions:
        if isinstance(decision.outcome, TaskChanged):
            by_cause.setdefault((decision.cell, decision.place[0]), set()).update(decision.outcome.job_ids)
    released = [each for each in run.decisions if isinstance(each.outcome, TaskReleased)]
    assert len(released) > 10
    for decision in released:
        told = by_cause.get((decision.cell, decision.place[0]), set())
        assert set(decision.outcome.job_ids) <= told, decision


def test_job_on_full_zone_is_profiled_later():
    run = simulated(merging_cell(), [(1.0, submit("zero")), (100.0, submit("other", "b"))])
    completed = [each.outcome.job_id for each in run.decisions if isinstance(each.outcome, JobCompleted)]
    assert completed == ["zero", "other"]
