"""Jobs that start from adapters of finished jobs, whose owners have given leave, and from no others."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Outcome
from schemas.decisions import JobCompleted
from schemas.merging.commands import TaskAssigned
from schemas.merging.outcomes import MergeEvaluated, TaskChanged
from schemas.merging.settings import LIBRARY_KEPT
from tests.support.examples import examples
from tests.support.merging import World, merging_cell, submit
from tests.support.merging_script import Script, of, share

STEPS = 1_000


def world(**policy: Any) -> World:
    return World(merging_cell(nodes=1, **{"merges": "expected", "modes": ("temporal",), **policy}))


@pytest.fixture
def script() -> Script:
    return Script(merges="expected")


def sources(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the finished job whose adapter each job was last ordered to start from."""
    last = {order.job_id: order for task in of(TaskAssigned, outcomes) for order in task.orders}
    return {
        order.job_id: order.starts_from.job_id for order in last.values() if order.starts_from is not None
    }


def finish(script: Script, job_id: str, **fields: Any) -> list[Outcome]:
    """Run a job alone to its end."""
    script.ready(job_id, **fields)
    outcomes = script.plan(share(job_id))
    return outcomes + script.send(script.finished(job_id, STEPS))


def test_job_starts_from_reusable_adapter():
    here = world()
    first = here.send(submit("first", reusable=True)) + here.run_until_idle()
    outcomes = here.send(submit("second", user="bob")) + here.run_until_idle()
    assert (sources(first), sources(outcomes)) == ({}, {"second": "first"})
    (started,) = (each for each in of(TaskChanged, outcomes) if each.reason == "started")
    assert [(each.job_id, each.partner) for each in started.foretold] == [("second", "first")]
    (evaluated,) = of(MergeEvaluated, outcomes)
    assert (evaluated.job_id, evaluated.partner, evaluated.reason) == ("second", "first", "finished")
    assert evaluated.iterations < evaluated.iterations_alone


@pytest.mark.parametrize(
    ("first", "second", "policy"),
    [
        ({}, {}, {}),
        ({"reusable": True}, {"sharing": False}, {}),
        ({"reusable": True}, {"pipeline": True}, {}),
        ({"reusable": True}, {}, {"modes": ()}),
        ({"reusable": True}, {}, {"modes": ("spatial",)}),
        ({"reusable": True}, {}, {"merges": "shown"}),
    ],
    ids=["no leave", "shares nothing", "pipeline", "no merges", "other mode", "nothing shown"],
)
def test_job_starts_afresh_otherwise(first, second, policy):
    here = world(**policy)
    outcomes: list[Outcome] = []
    for job in (submit("first", **first), submit("second", **second)):
        outcomes += here.send(job) + here.run_until_idle()
    assert len(of(JobCompleted, outcomes)) == 2
    assert sources(outcomes) == {}


JOBS = st.lists(
    st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=6
)


@settings(deadline=None, max_examples=examples(60))
@given(JOBS)
def test_no_adapter_is_reused_without_leave(jobs):
    here = world(modes=("temporal", "spatial"))
    outcomes: list[Outcome] = []
    for number, (data, reusable, alone, waits) in enumerate(jobs):
        shared = {"reusable": reusable} if not alone else {"sharing": False}
        outcomes += here.send(submit(f"j{number}", f"user{number}", data, epochs=4, **shared))
        outcomes += here.run_until_idle() if waits else []
    outcomes += here.run_until_idle()
    with_leave = {
        f"j{number}" for number, (_, reusable, alone, _) in enumerate(jobs) if reusable and not alone
    }
    used = sources(outcomes)
    assert set(used.values()) <= with_leave
    # Nor one that has learned from an adapter without leave.
    for task in of(TaskAssigned, outcomes):
        if task.mode != "normal":
            learners = task.orders[1:] if task.mode == "temporal" else task.orders
            done = {each.job_id for each in of(MergeEvaluated, outcomes) if each.reason == "finished"}
            assert done.isdisjoint(set(used.values()) & {order.job_id for order in learners})


def test_adapter_of_merge_is_not_kept(script):
    script.ready("donor")
    script.ready("learner", reusable=True)
    script.plan(share("donor", "learner"))
    script.send(script.finished("donor", STEPS), script.finished("learner", STEPS))
    assert script.bench.described["library"] == []


def test_donor_of_merge_may_be_reused(script):
    script.ready("donor", reusable=True)
    script.ready("learner")
    script.plan(share("donor", "learner"))
    script.send(script.finished("donor", STEPS))
    assert [each["job_id"] for each in script.bench.described["library"]] == ["donor"]


def test_undone_start_begins_again(script):
    finish(script, "first", reusable=True)
    script.ready("second", accuracy=0.8)
    assert sources(script.plan(share("second"))) == {"second": "first"}
    outcomes = script.send(script.evaluated("second", 2.0, 0.05))
    assert [each.reason for each in of(MergeEvaluated, outcomes)] == ["undone"]
    script.end("second", iterations=0)
    outcomes = script.plan(share("second"))
    assert (len(of(TaskAssigned, outcomes)), sources(outcomes)) == (1, {})


def test_preempted_job_keeps_its_start(script):
    finish(script, "first", reusable=True)
    script.ready("second")
    script.plan(share("second"))
    script.send(script.progressed("second", 300))
    script.plan()
    outcomes = script.end("second", iterations=300) + script.plan(share("second"))
    assert sources(outcomes) == {"second": "first"}
    script.send(script.finished("second", STEPS))
    assert script.bench.described["library"][0]["job_id"] == "first"


@pytest.mark.parametrize("permanent", [False, True])
def test_job_whose_start_fails_begins_again(script, permanent):
    finish(script, "first", reusable=True)
    script.ready("second")
    script.plan(share("second"))
    script.send(script.failed("second", permanent=permanent))
    assert script.bench.described["library"] == []
    outcomes = script.plan(share("second"))
    assert (len(of(TaskAssigned, outcomes)), sources(outcomes)) == (1, {})
    assert [each.job_id for each in of(JobCompleted, script.send(script.finished("second", STEPS)))] == [
        "second"
    ]


def test_library_keeps_latest_adapter_of_each_kind():
    script = Script(nodes=2, gpus=LIBRARY_KEPT, merges="expected", modes=("temporal",))
    jobs = [f"j{number}" for number in range(LIBRARY_KEPT + 2)]
    script.ready(*jobs, reusable=True)
    script.plan(*map(share, jobs))
    script.send(*(script.finished(job_id, STEPS) for job_id in jobs))
    finish(script, "again", data="j10", reusable=True)
    kept = [each["job_id"] for each in script.bench.described["library"]]
    assert kept == [job_id for job_id in jobs[2:] if job_id != "j10"] + ["again"]
