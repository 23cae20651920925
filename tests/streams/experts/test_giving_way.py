"""No user holds the devices of an experts zone for ever: jobs that give way for others, and their times."""

from itertools import pairwise
from typing import Any

import pytest

from schemas.base import Outcome
from schemas.changes import NodeRetired, ZoneConfigured
from schemas.experts.commands import RanksReleased
from schemas.experts.outcomes import RanksChanged
from streams.policies.experts.turns import MOST_PASSED
from tests.support.moe import (
    CELL,
    MoeBench,
    ObedientNodes,
    failed,
    moe_cell,
    moe_zone,
    progressed,
    serving,
    submit,
    tick,
    training,
    withdraw,
)

PATIENCE_S = 100.0
STEP_S = 10.0
"""Between two ticks of the clock."""
SLACK_S = 3 * STEP_S
"""A claim is seen at a tick, the ranks that it takes go after it, and the job begins at the next."""


def endless(ranks: int) -> Any:
    return serving(ranks, 10**12, profile_batches=0)


class World:
    """A zone of nodes of two devices that obey at once; who has ranks, and what has changed when."""

    def __init__(self, nodes: int = 2) -> None:
        self.bench, self.nodes = MoeBench(), ObedientNodes()
        self.time_s = 0.0
        self.has: dict[str, int] = {}
        """Ranks of the jobs that have some."""
        self.began_s: dict[str, float] = {}
        """When each job that has ranks had them."""
        self.changes: list[tuple[float, str, str]] = []
        """Time, job and reason."""
        self.outcomes: list[Outcome] = []
        policy = {"patience_s": PATIENCE_S, "report_interval_s": STEP_S}
        # Its nodes report nothing of a run between its begin and its end.
        self.send(moe_cell(nodes, order_timeout_s=1e7, **policy), tick(0.0))

    def send(self, *events: Any) -> None:
        for event in events:
            outcomes = self.bench.send(event)
            self.outcomes += outcomes
            self.nodes.obey(outcomes)
            for change in outcomes:
                if isinstance(change, RanksChanged):
                    self.note(change)

    def note(self, change: RanksChanged) -> None:
        self.changes.append((self.time_s, change.job_id, change.reason))
        if change.members:
            self.has[change.job_id] = sum(member.ranks for member in change.members)
            self.began_s[change.job_id] = self.time_s
        else:
            self.has.pop(change.job_id)

    def submit(self, user: str, **workloads: Any) -> None:
        for job_id, workload in workloads.items():
            self.send(submit(job_id, workload, user))

    def settle(self) -> None:
        """Send all reports of all nodes."""
        while self.nodes.due:
            self.send(self.nodes.next_report(min(self.nodes.due)))

    def step(self) -> None:
        self.time_s += STEP_S
        self.send(tick(self.time_s))
        self.settle()

    def run(self, seconds: float) -> None:
        until_s = self.time_s + seconds
        while self.time_s < until_s:
            self.step()

    def end(self, job_id: str) -> None:
        self.nodes.end(job_id)
        self.settle()
        self.has.pop(job_id)

    def times(self, job_id: str, *reasons: str) -> list[float]:
        return [time_s for time_s, job, reason in self.changes if job == job_id and reason in reasons]

    def gave_way(self) -> list[str]:
        return [job_id for _, job_id, reason in self.changes if reason == "gave_way"]


def test_two_full_services_alternate():
    world = World()
    world.submit("ann", a=endless(4))
    world.step()
    world.submit("ben", b=endless(4))
    world.run(6 * PATIENCE_S)
    begun = sorted((time_s, job) for job in "ab" for time_s in world.times(job, "started", "resumed"))
    assert [job for _, job in begun] == ["a", "b", "a", "b", "a", "b"]
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(begun)]
    assert all(PATIENCE_S <= gap <= PATIENCE_S + SLACK_S for gap in gaps)


def test_preempted_job_keeps_checkpoint_and_states_cause():
    world = World()
    world.submit("ann", a=endless(4))
    world.step()
    world.submit("ben", b=endless(4))
    world.run(PATIENCE_S + STEP_S)
    (change,) = (
        told for told in world.outcomes if isinstance(told, RanksChanged) and told.reason == "gave_way"
    )
    assert change.job_id == "a"
    assert change.facts == {"job_id": "b", "user": "ben", "waited_s": pytest.approx(100.0)}
    releases = [told for told in world.outcomes if isinstance(told, RanksReleased)]
    assert [(command.node, command.reason) for command in releases] == [
        ("n0", "preempted"),
        ("n1", "preempted"),
    ]


def test_users_with_equal_shares_preempt_nothing():
    world = World()
    world.submit("ann", a0=endless(1), a1=endless(1), a2=endless(1))
    world.submit("ben", b0=endless(1), b1=endless(1), b2=endless(1))
    world.run(20 * PATIENCE_S)
    assert world.has == {"a0": 1, "a1": 1, "b0": 1, "b1": 1}
    assert not world.gave_way()


def test_a_user_takes_nothing_from_itself():
    world = World()
    world.submit("ann", a0=endless(4), a1=endless(4), a2=training(1))
    world.run(10 * PATIENCE_S)
    assert world.has == {"a0": 4}


def test_smaller_user_preempts_until_shares_are_equal():
    world = World()
    world.submit("ann", a0=endless(1), a1=endless(1), a2=endless(1))
    world.submit("ben", b0=endless(1))
    world.step()
    world.submit("ben", b1=endless(1), b2=endless(1))
    world.run(10 * PATIENCE_S)
    assert world.has == {"a1": 1, "a2": 1, "b0": 1, "b1": 1}
    assert world.gave_way() == ["a0"]


@pytest.mark.parametrize(("ranks", "expected"), [(1, ["a0"]), (2, ["a2"]), (3, ["a0", "a2"])])
def test_the_fewest_ranks_that_suffice_give_way(ranks: int, expected: list[str]):
    world = World()
    world.submit("ann", a0=endless(1), a1=endless(1), a2=endless(2))
    world.step()
    world.submit("ben", b=endless(ranks))
    world.run(PATIENCE_S + STEP_S)
    assert world.gave_way() == expected
    assert world.has["b"] == ranks


def test_jobs_with_fewest_ranks_are_preempted():
    world = World(4)
    world.submit("ann", a0=endless(2), a1=endless(2), a2=endless(3))
    world.step()
    world.submit("ben", b=endless(5))
    world.run(PATIENCE_S + STEP_S)
    assert world.gave_way() == ["a0", "a1"], "one device idles"


def test_the_users_with_most_ranks_give_way():
    world = World(3)
    world.submit("ann", a=endless(2))
    world.submit("ben", b0=endless(1), b1=endless(2))
    world.step()
    world.submit("cid", c=endless(3))
    world.run(PATIENCE_S + STEP_S)
    assert world.gave_way() == ["b1"], "one device idles"


def test_preempting_two_users_doubles_the_wait():
    world = World()
    world.submit("ann", a=endless(2))
    world.submit("ben", b=endless(2))
    world.step()
    world.submit("cid", c=endless(4))
    world.run(12 * PATIENCE_S)
    begun, lost = world.times("c", "started", "resumed"), world.times("c", "gave_way")
    assert 2 * PATIENCE_S <= begun[0] <= 2 * PATIENCE_S + SLACK_S
    parts = [
        (lost_s - began_s) / (again_s - began_s)
        for began_s, lost_s, again_s in zip(begun, lost, begun[1:], strict=False)
    ]
    assert len(parts) == 3
    assert parts == pytest.approx([1 / 3] * 3, rel=0.1)


def test_mutual_preemption_does_not_starve_wide_job():
    world = World(1)
    world.submit("ann", a=endless(1))
    world.step()
    world.submit("cid", c=endless(2))
    world.run(PATIENCE_S / 2)
    for user in ("ben", "dan", "eve"):
        world.submit(user, **{f"of-{user}": endless(1)})
    world.run(5 * PATIENCE_S)
    assert world.times("c", "started")


def test_just_started_job_is_left_running():
    world = World(3)
    world.submit("ann", a0=training(2), a1=endless(2), a2=training(2))
    world.step()
    world.submit("ben", b=endless(6))
    world.run(PATIENCE_S - 2 * STEP_S)
    world.end("a0")
    world.submit("ann", young=endless(2))
    world.step()
    (young_s,) = world.times("young", "started")
    world.run(3 * STEP_S)
    world.end("a2")
    world.submit("cid", c=training(1))
    world.run(young_s + PATIENCE_S - STEP_S - world.time_s)
    assert world.has == {"a1": 2, "young": 2}
    world.run(SLACK_S)
    assert world.times("a1", "gave_way") == world.times("young", "gave_way") == [young_s + PATIENCE_S]
    assert world.has == {"b": 6}


def test_own_failures_gain_no_time():
    world = World(1)
    world.submit("ann", a=endless(2))
    world.step()
    world.submit("ben", b=endless(2))
    for attempt in (1, 2):
        world.run(4 * STEP_S)
        leader = world.nodes.leading["a"]
        world.send(progressed(leader, attempt), failed(leader))
    world.run(4 * STEP_S)
    (gave_way_s,) = world.times("a", "gave_way")
    lost_s = sum(
        later - earlier
        for earlier, later in zip(world.times("a", "run_failed"), world.times("a", "resumed"), strict=True)
    )
    assert gave_way_s - world.times("a", "started")[0] == PATIENCE_S + lost_s


def test_preempted_job_follows_users_others():
    world = World()
    world.submit("ann", a0=endless(4), a1=endless(4))
    world.step()
    world.submit("ben", b=endless(4))
    world.run(5 * PATIENCE_S)
    begun = sorted(
        (time_s, job) for job in ("a0", "a1", "b") for time_s in world.times(job, "started", "resumed")
    )
    assert [job for _, job in begun] == ["a0", "b", "a1", "b", "a0"]


def waiting_for_its_devices() -> World:
    """Return a world in which ann's job gives way for that of ben, and one of its nodes has yet to report the
    end of its ranks."""
    world = World()
    world.submit("ann", a=endless(4))
    world.step()
    world.submit("ben", b=endless(4))
    world.submit("cid", c=training(1))
    world.run(PATIENCE_S - STEP_S)
    world.time_s += STEP_S
    world.send(tick(world.time_s))
    assert world.gave_way() == ["a"]
    world.send(world.nodes.next_report("n0"))
    return world


def test_freed_devices_are_held_for_waiting_job():
    world = waiting_for_its_devices()
    world.time_s += STEP_S
    world.send(tick(world.time_s))
    assert world.has == {}, "two devices idle, and the smaller job needs one"
    world.settle()
    world.step()
    assert world.has == {"b": 4}


def test_job_of_leaving_node_uses_no_held_gpus():
    world = World(3)
    world.submit("ann", a=endless(4))
    world.step()
    world.submit("dan", d=endless(2))
    world.step()
    world.submit("ben", b=endless(4))
    world.run(PATIENCE_S - STEP_S)
    world.time_s += STEP_S
    world.send(tick(world.time_s))
    assert world.gave_way() == ["a"]
    world.send(world.nodes.next_report("n0"), NodeRetired(cell=CELL, node="n2"))
    assert world.has == {"d": 2}
    world.settle()
    world.step()
    assert world.has == {"d": 2, "b": 4}


def test_withdrawn_preemptor_lets_next_begin():
    world = waiting_for_its_devices()
    world.send(withdraw("b", "ben"))
    world.step()
    assert world.has == {"c": 1}


def test_job_blocked_by_own_service_delays_no_other():
    world = World()
    world.submit("ben", b0=endless(1), b1=training(4))
    world.step()
    for number in range(2 * MOST_PASSED):
        world.submit("cid", **{f"c{number}": training(3)})
        world.step()
        assert f"c{number}" in world.has
        world.end(f"c{number}")


def test_device_is_not_held_without_preemptable_rest():
    world = World()
    world.submit("ann", a=endless(2))
    world.submit("ben", b0=endless(1), b1=training(2))
    world.run(PATIENCE_S + STEP_S)
    for number in range(2 * MOST_PASSED):
        world.submit("cid", **{f"c{number}": training(1)})
        world.step()
        assert f"c{number}" in world.has
        world.end(f"c{number}")
    assert not world.gave_way()


def test_an_operator_sets_how_long_jobs_wait():
    world = World()
    world.submit("ann", a=endless(4))
    world.step()
    world.submit("ben", b=endless(4))
    world.send(ZoneConfigured(cell=CELL, zone=moe_zone(2, patience_s=2 * STEP_S, report_interval_s=STEP_S)))
    world.run(2 * STEP_S)
    assert world.gave_way() == ["a"]
