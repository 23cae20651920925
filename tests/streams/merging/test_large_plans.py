"""A plan that changes many tasks is carried out in parts."""

import pytest

from schemas.merging.commands import TaskAssigned, TaskReleased
from schemas.merging.outcomes import PlanDecided
from streams.policies.merging import allocation
from tests.support.merging_script import Script, of, share

JOBS = tuple(f"j{number}" for number in range(6))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(allocation, "MOST_CHANGED", 2)
    script = Script(nodes=2)
    script.ready(*JOBS, data="one")
    return script


def test_largest_shares_begin_and_others_follow(script: Script) -> None:
    outcomes = script.plan(share("j0"), share("j1"), share("j2", gpus=2), share("j3"))
    assert [order.orders[0].job_id for order in of(TaskAssigned, outcomes)] == ["j2", "j0"]
    (decided,) = of(PlanDecided, outcomes)
    assert (decided.jobs, decided.dropped) == (2, 2)

    shares = share("j0"), share("j1"), share("j2", gpus=2), share("j3")
    outcomes = script.plan(*shares)
    assert [order.orders[0].job_id for order in of(TaskAssigned, outcomes)] == ["j1", "j3"]
    (decided,) = of(PlanDecided, outcomes)
    assert (decided.jobs, decided.dropped) == (4, 0)


def test_no_more_tasks_are_stopped_than_begin(script: Script) -> None:
    for jobs in (JOBS[:2], JOBS[:4], JOBS):
        script.plan(*map(share, jobs))
    assert len(script.bench.described["tasks"]) == 6

    outcomes = script.plan(share("j5"))
    assert {order.job_ids[0] for order in of(TaskReleased, outcomes)} == {"j0", "j1"}
    outcomes = script.plan(share("j5"))
    assert {order.job_ids[0] for order in of(TaskReleased, outcomes)} == {"j2", "j3"}
