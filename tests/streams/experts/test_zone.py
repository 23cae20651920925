"""An experts zone, case by case: assignments of ranks, commands to nodes, and ends of jobs."""

from typing import Any

import pytest

from schemas.base import Outcome
from schemas.changes import NodeCordoned, NodeRetired, NodeUncordoned
from schemas.codec import MAX_VALUE_BYTES
from schemas.decisions import (
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
)
from schemas.experts.commands import RanksAssigned, RanksReleased
from schemas.experts.outcomes import RanksChanged
from schemas.experts.reports import ELEMENTS_PER_LAYER, MAX_ELEMENTS
from schemas.fleet import CommandRefused, NodeSeen, NodeSilent, RefusedRun
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from streams.cell.state_machine import Cell
from streams.policies.experts.popularity import MAX_SLOTS
from streams.policies.experts.turns import MOST_PASSED
from streams.policies.experts.warm_up import warm_up_events
from streams.policies.orders import MOST_FAILURES
from tests.support.cells import Bench
from tests.support.moe import (
    CELL,
    LENDER,
    MoeBench,
    commands,
    failed,
    finished,
    gone,
    moe_cell,
    online,
    profiled,
    progressed,
    serving,
    submit,
    tick,
    training,
    withdraw,
)
from tests.support.room import limit_room


class Script:
    """A zone and its nodes, which report in order unless a test sets otherwise."""

    def __init__(self, nodes: int = 2, lendable: int = 0, **policy: Any) -> None:
        self.bench = MoeBench()
        self.time_s = 0.0
        self.send(moe_cell(nodes, lendable, **policy), tick(0.0))

    def send(self, *events: Any) -> list[Outcome]:
        return self.bench.send(*events)

    def pass_time(self, seconds: float = 1.0) -> list[Outcome]:
        self.time_s += seconds
        return self.send(tick(self.time_s))

    def start(self, job_id: str, workload: Any = None, user: str = "ann") -> list[RanksAssigned]:
        """The commands to its nodes."""
        self.send(submit(job_id, workload or training(), user))
        return assigned(self.pass_time())


def assigned(outcomes: list[Outcome]) -> list[RanksAssigned]:
    return [outcome for outcome in outcomes if isinstance(outcome, RanksAssigned)]


def released(outcomes: list[Outcome]) -> list[RanksReleased]:
    return [outcome for outcome in outcomes if isinstance(outcome, RanksReleased)]


def kinds(outcomes: list[Outcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def changes(outcomes: list[Outcome]) -> list[str]:
    return [outcome.reason for outcome in outcomes if isinstance(outcome, RanksChanged)]


def test_job_queues_and_gets_ranks_at_tick():
    script = Script()
    (admitted,) = script.send(submit("a", serving(3)))
    assert isinstance(admitted, JobAdmitted)
    assert (admitted.evidence.ranks, admitted.evidence.jobs_waiting) == (3, 0)
    change, first, second = script.pass_time()
    assert (change.reason, change.generation) == ("started", 1)
    assert [(member.node, member.ranks) for member in change.members] == [("n0", 2), ("n1", 1)]
    assert [first.node, second.node] == ["n0", "n1"]
    assert first.run_id == second.run_id == "1/a"
    assert first.members == second.members == change.members
    assert (first.resume_samples, first.revision, first.placement) == (0, 0, ())


def test_a_job_larger_than_the_zone_is_rejected():
    script = Script()
    (rejected,) = script.send(submit("a", serving(5)))
    assert isinstance(rejected, JobRejected)
    assert rejected.reason == "larger_than_the_zone"
    assert rejected.facts == {"ranks": 5, "own_gpus": 4}


def test_job_completes_after_all_nodes():
    script = Script()
    leader, other = script.start("a", training(4))
    assert script.send(progressed(other, 1_000, complete=True)) == []
    (completed,) = script.send(finished(leader))
    assert isinstance(completed, JobCompleted)
    assert completed.samples_done == 1_000


def test_devices_are_held_until_last_node_reports():
    script = Script()
    leader, other = script.start("a", training(4))
    assert script.send(finished(leader)) == []
    script.send(submit("b", training(3)))
    assert not assigned(script.pass_time())
    (completed,) = script.send(progressed(other, 1_000, complete=True))
    assert isinstance(completed, JobCompleted)
    assert assigned(script.pass_time())


def test_two_users_take_turns():
    script = Script(1)
    (running,) = script.start("a0")
    script.send(*(submit(f"a{number}", training()) for number in (1, 2, 3)))
    script.send(*(submit(f"b{number}", training(), "ben") for number in (1, 2)))
    order = []
    for _ in range(5):
        script.send(finished(running))
        (running,) = assigned(script.pass_time())
        order.append(running.job_id)
    assert order == ["b1", "a1", "b2", "a2", "a3"] or order == ["a1", "b1", "a2", "b2", "a3"]


def test_smaller_jobs_pass_larger_limited_times():
    script = Script()
    running = [script.start(f"r{number}", training(2))[0] for number in (0, 1)]
    script.send(submit("large", training(4), "large"))
    for number in range(3 * MOST_PASSED):
        script.send(submit(f"s{number}", training(2), f"u{number}"))
    passed = 0
    while True:
        over = running.pop(0)
        script.send(finished(over))
        begun = assigned(script.pass_time())
        if not begun:
            break
        assert begun[0].job_id != "large"
        running += begun
        passed += 1
    assert passed == MOST_PASSED
    script.send(finished(running.pop()))
    assert {command.job_id for command in assigned(script.pass_time())} == {"large"}


def test_job_needing_down_node_delays_no_other():
    script = Script()
    script.send(NodeSilent(cell=CELL, node="n1", silent_s=60.0))
    script.send(submit("large", training(4), "large"))
    for number in range(MOST_PASSED + 2):
        (begun,) = script.start(f"s{number}", training(2))
        script.send(finished(begun))
    script.send(NodeSeen(cell=CELL, node="n1", base_model="any", runners=("moe",)))
    assert {command.job_id for command in assigned(script.pass_time())} == {"large"}


def test_lost_node_ends_generation_and_next_begins():
    script = Script(3)
    leader, other = script.start("a", training(3))
    script.send(progressed(leader, 400))
    outcomes = script.send(NodeSilent(cell=CELL, node=other.node, silent_s=60.0))
    assert changes(outcomes) == ["node_lost"]
    assert [(command.node, command.reason) for command in released(outcomes)] == [
        (leader.node, "node_lost"),
        (other.node, "node_lost"),
    ], "the lost one hears of it when it is back"
    assert not assigned(script.pass_time()), "the leader has not ended its ranks"
    script.send(gone(released(outcomes)[0], 350))
    resumed = assigned(script.pass_time())
    assert {command.node for command in resumed} == {"n0", "n2"}
    assert {(command.generation, command.run_id) for command in resumed} == {(2, "2/a")}
    assert resumed[0].resume_samples == 350, "as far as its checkpoint"


def test_restarted_executor_has_lost_its_ranks():
    script = Script(1)
    script.start("a")
    outcomes = script.send(online("n0"))
    assert changes(outcomes) == ["node_lost"]
    assert changes(script.pass_time()) == ["resumed"]


def test_jobs_of_lost_node_end_in_submission_order():
    script = Script(1)
    (first,) = script.start("a", training(1))
    script.start("b", training(1))
    script.send(failed(first))
    assert assigned(script.pass_time())[0].job_id == "a", "it has its device after b has its own"
    script.bench.twin = Cell.unpack(script.bench.cell.packed())
    outcomes = script.send(NodeSilent(cell=CELL, node="n0", silent_s=60.0))
    assert [command.job_id for command in released(outcomes)] == ["a", "b"]


def test_failed_run_restarts_up_to_three_times():
    script = Script()
    for attempt in range(MOST_FAILURES):
        commanded = script.start("a", training(3)) if attempt == 0 else assigned(script.pass_time())
        outcomes = script.send(failed(commanded[1]))
        assert changes(outcomes) == ["run_failed"]
        (release,) = released(outcomes)
        assert release.node == commanded[0].node
        last = script.send(gone(release))
    assert release.reason == "failed", "nothing is kept"
    (refunded,) = last
    assert isinstance(refunded, JobRefunded)
    assert (refunded.reason, refunded.facts["node"], refunded.remaining_samples) == (
        "run_failed",
        commanded[1].node,
        1_000,
    )


def test_failures_before_progress_do_not_count():
    script = Script()
    (command,) = script.start("a")
    for attempt in range(1, 2 * MOST_FAILURES):
        script.send(progressed(command, 10 * attempt))
        script.send(failed(command))
        (command,) = assigned(script.pass_time())
    assert command.generation == 2 * MOST_FAILURES


def test_progress_beyond_work_counts_as_all():
    script = Script()
    (command,) = script.start("a")
    script.send(progressed(command, 2 * 10**12))
    script.send(failed(command))
    (command,) = assigned(script.pass_time())
    assert command.resume_samples == 1_000


def test_a_permanent_failure_ends_a_job_at_once():
    script = Script()
    (command,) = script.start("a")
    outcomes = script.send(failed(command, permanent=True))
    assert kinds(outcomes) == [RanksChanged, JobRefunded]
    assert outcomes[1].facts == {"node": command.node, "run_id": command.run_id}


def test_a_refused_command_counts_as_a_failed_run():
    script = Script()
    leader, other = script.start("a", training(3))
    refusal = CommandRefused(
        cell=CELL,
        node=other.node,
        command_id="c-1-0",
        runner="moe",
        reason="runner_failed",
        detail="no GPU is visible",
        runs=(RefusedRun(run_id=other.run_id, job_id="a"),),
    )
    outcomes = script.send(refusal)
    assert changes(outcomes) == ["run_failed"]
    assert [command.node for command in released(outcomes)] == [leader.node]


def test_leader_ending_early_is_restarted():
    script = Script()
    leader, _ = script.start("a", training(3))
    outcomes = script.send(progressed(leader, 300, complete=True))
    assert changes(outcomes) == ["run_failed"]
    script.send(gone(released(outcomes)[0]))
    assert assigned(script.pass_time())[0].resume_samples == 300


def test_withdrawn_job_ends_after_its_ranks():
    script = Script()
    script.start("a", training(3))
    outcomes = script.send(withdraw("a"))
    assert changes(outcomes) == ["withdrawn"]
    first, second = released(outcomes)
    assert (first.reason, second.reason) == ("withdrawn", "withdrawn")
    (ignored,) = script.send(withdraw("a"))
    assert ignored.reason == "job_ending"
    assert script.send(gone(first)) == []
    assert kinds(script.send(gone(second))) == [JobWithdrawn]
    script.send(submit("b", training(), "ben"))
    assert kinds(script.send(withdraw("b", "ben"))) == [JobWithdrawn], "it had none"


def test_work_done_before_release_counts():
    script = Script(2)
    leader, other = script.start("a", training(3))
    outcomes = script.send(NodeSilent(cell=CELL, node=other.node, silent_s=60.0))
    assert changes(outcomes) == ["node_lost"]
    assert kinds(script.send(finished(leader))) == [JobCompleted]


def test_a_service_ends_at_its_time():
    script = Script()
    leader, _ = script.start("a", serving(3, None, until_s=100.0))
    script.send(progressed(leader, 64))
    assert not released(script.pass_time(90.0))
    outcomes = script.pass_time(10.0)
    assert changes(outcomes) == ["ended"]
    first, second = released(outcomes)
    assert first.reason == "ended"
    script.send(gone(second))
    (completed,) = script.send(gone(first, 70))
    assert isinstance(completed, JobCompleted)
    assert completed.samples_done == 70


def test_service_expired_without_devices_is_refunded():
    script = Script(1)
    script.start("a")
    script.send(submit("b", serving(2, None, until_s=50.0)))
    (refunded,) = (o for o in script.pass_time(60.0) if isinstance(o, JobRefunded))
    assert (refunded.job_id, refunded.reason) == ("b", "time_over")


def test_cordoned_node_keeps_only_its_job():
    script = Script(1)
    (command,) = script.start("a")
    script.send(NodeCordoned(cell=CELL, node="n0"))
    script.send(submit("b", training()))
    script.send(finished(command))
    assert not assigned(script.pass_time())
    script.send(NodeUncordoned(cell=CELL, node="n0"))
    assert assigned(script.pass_time())[0].job_id == "b"


def test_job_leaves_leaving_node_if_room_exists():
    script = Script()
    script.start("a")
    outcomes = script.send(NodeRetired(cell=CELL, node="n0"))
    assert changes(outcomes) == ["preempted"]
    (release,) = released(outcomes)
    assert release.reason == "preempted"
    outcomes = script.send(gone(release, 250))
    assert NodeMoved in kinds(outcomes)
    (resumed,) = assigned(script.pass_time())
    assert (resumed.node, resumed.resume_samples) == ("n1", 250)


def test_job_without_alternative_stays_on_leaving_node():
    script = Script()
    (first,) = script.start("a")
    (second,) = script.start("b")
    assert not released(script.send(NodeRetired(cell=CELL, node="n0")))
    script.send(submit("c", training()))
    outcomes = [*script.send(finished(second)), *script.pass_time()]
    assert changes(outcomes)[0] == "preempted"
    assert released(outcomes)[0].node == first.node


def test_node_needed_by_admitted_job_stays():
    script = Script()
    script.send(submit("large", training(4)))
    script.send(NodeRetired(cell=CELL, node="n1"))
    leader, other = assigned(script.pass_time())
    script.send(finished(leader))
    outcomes = script.send(progressed(other, 1_000, complete=True))
    assert NodeMoved in kinds(outcomes)
    (rejected,) = script.send(submit("larger", training(3)))
    assert rejected.reason == "larger_than_the_zone"


def test_loaned_server_is_used_and_returned():
    script = Script(1, lendable=2)
    script.send(InferenceLoadReported(cell=CELL, zone=LENDER, time_s=0.0, load=0.0))
    script.send(CapacityOffered(cell=CELL, zone=LENDER, offer_id="offer", servers=("i0",)), online("i0"))
    (rejected,) = script.send(submit("large", training(3)))
    assert rejected.reason == "larger_than_the_zone", "nobody is promised a server on loan"
    script.start("a")
    (command,) = script.start("b")
    assert command.node == "i0"
    reclaim = CapacityReclaimed(cell=CELL, zone=LENDER, reclaim_id="r", servers=1, due_s=script.time_s + 200)
    outcomes = script.send(reclaim)
    assert changes(outcomes) == ["preempted"]
    (release,) = released(outcomes)
    assert (release.node, release.job_id) == ("i0", "b")
    assert NodeMoved in kinds(script.send(gone(release)))


def test_a_stale_report_changes_nothing():
    script = Script()
    (command,) = script.start("a")
    script.send(failed(command))
    (again,) = assigned(script.pass_time())
    for stale in (finished(command), failed(command), finished(again.model_copy(update={"node": "n1"}))):
        (ignored,) = script.send(stale)
        assert isinstance(ignored, EventIgnored)
        assert ignored.reason == "stale_report"


def test_user_exceeding_room_gets_cell_full():
    script = Script()
    for cell in (script.bench.cell, script.bench.twin):
        limit_room(cell, 6_000)
    outcomes: list[Outcome] = []
    while not any(isinstance(outcome, JobRejected) for outcome in outcomes):
        outcomes += script.send(submit(f"j{len(outcomes)}", training()))
    assert outcomes[-1].reason == "cell_full"
    assert isinstance(script.send(submit("other", training(), "ben"))[0], JobAdmitted)


@pytest.mark.parametrize("nodes", [4, 32])
def test_the_largest_placement_fits_a_record(nodes):
    script = Script(nodes)
    ranks = 2 * nodes
    experts = 64
    layers = min(MAX_SLOTS // (experts * ranks), MAX_ELEMENTS // (experts + ELEMENTS_PER_LAYER))
    leader, *_ = script.start("a", serving(ranks, most_experts_per_device=64))
    counts = [tuple(range(1, experts + 1))] * layers
    outcomes = script.send(profiled(leader, *counts))
    assert len(commands(outcomes)) == nodes
    assert max(len(decision.encoded or b"") for decision in script.bench.decisions) < MAX_VALUE_BYTES // 2


def test_warm_up_places_experts_twice():
    bench = Bench(cell=Cell("experts"))
    reasons = [o.reason for o in bench.send(*warm_up_events()) if type(o).__name__ == "PlacementDecided"]
    assert reasons[:2] == ["initial", "popularity_shifted"]
