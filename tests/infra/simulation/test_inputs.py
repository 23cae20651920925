"""Inputs of a simulation besides jobs, and when it ends."""

from itertools import count, takewhile

import pytest

from infra.simulation.event_queue import EventQueue, EventRank
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.workloads.timed import TimedEvent, WorkloadError
from schemas.auction.bids import QuoteAccepted
from schemas.base import MAX_TIME_S, Event, Outcome
from schemas.cells import CellConfigured
from schemas.changes import NodeRegistered, NodeRetired, ZoneConfigured
from schemas.clock import ClockTicked
from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    NodeStatusChanged,
)
from schemas.fleet import NodeOnline
from schemas.lora_commands import SlotAssigned
from streams.replay.replay import DecisionRecord, verify
from tests.support.cells import EPOCH_S, SLOT_S, ask, bid, configuration, vendor, withdraw, zone

FAR_S = 2_000_000_000.0


def simulate(*inputs: tuple[float, Event], cell: CellConfigured | None = None) -> SimulatedRun:
    """A run with events at these seconds from the epoch."""
    timed = [TimedEvent(EPOCH_S + at_s, event) for at_s, event in inputs]
    run = Simulation(cell or configuration(), timed).run()
    records = [DecisionRecord(decision.canonical, decision.id) for decision in run.decisions]
    assert verify(run.ledger, records).ok
    return run


def outcomes(run: SimulatedRun, *kinds: type[Outcome]) -> list[Outcome]:
    return [decision.outcome for decision in run.decisions if isinstance(decision.outcome, kinds)]


def ticks(run: SimulatedRun) -> list[float]:
    """Their times, from the epoch."""
    events = [entry.envelope.event for entry in run.ledger]
    return [event.time_s - EPOCH_S for event in events if isinstance(event, ClockTicked)]


def test_registered_node_announces_itself_and_trains():
    cell = configuration(zones=(zone(nodes=zone().nodes[2:]),))
    joined = NodeRegistered(cell="c", node="new", zone="z", gpu_type="fast", tariff="t")
    wide = bid("wide", deadline_s=EPOCH_S + 90, memory_gib=7.0)
    run = simulate((0, wide), (12, joined), (15, wide.model_copy(update={"job_id": "again"})), cell=cell)
    rejected, admitted = outcomes(run, JobRejected, JobAdmitted)
    assert (rejected.job_id, admitted.job_id) == ("wide", "again"), "only the new node has room for it"
    awaited, up = outcomes(run, NodeStatusChanged)
    assert (awaited.reason, up.status) == ("awaited", "up")
    assert {assigned.node for assigned in outcomes(run, SlotAssigned) if assigned.runs} == {"new"}
    assert [job.job_id for job in outcomes(run, JobCompleted)] == ["again"]


def test_a_node_retires_when_its_runs_are_over():
    run = simulate((0, bid()), (11, NodeRetired(cell="c", node="a1")), (11, NodeRetired(cell="c", node="a2")))
    moved = [decision for decision in run.decisions if isinstance(decision.outcome, NodeMoved)]
    left = [(decision.outcome.node, decision.time_s) for decision in moved]
    assert left == [("a2", EPOCH_S + 10), ("a1", EPOCH_S + 18)], "a1 trains until the end of the slot"
    (completed,) = outcomes(run, JobCompleted)
    assert completed.node == "b1"


def test_changed_base_model_restarts_nodes():
    changed = zone(base_model="small")
    run = simulate((5, ZoneConfigured(cell="c", zone=changed)), (7, bid()))
    said = [entry.envelope.event for entry in run.ledger if isinstance(entry.envelope.event, NodeOnline)]
    assert [event.base_model for event in said] == ["tiny"] * 3 + ["small"] * 3
    assert len(outcomes(run, JobCompleted)) == 1


def test_withdrawals_quotes_and_vendor_events_are_simulated():
    run = simulate(
        (3, bid("prepared", needs_preprocessing=True)),
        (4, vendor("fast", 0.1, 0.0)),
        (5, bid("again", needs_preprocessing=True)),
        (6, ask()),
        (7, withdraw("again")),
    )
    told = outcomes(run, JobRejected, QuoteAccepted, JobAdmitted, JobQuoted, JobWithdrawn)
    assert [type(one).__name__ for one in told] == [
        *("JobRejected", "QuoteAccepted", "JobAdmitted", "JobQuoted", "JobWithdrawn")
    ]


def test_user_inputs_follow_the_clock_others_precede():
    run = simulate((SLOT_S, bid()), (SLOT_S, withdraw()), (SLOT_S, vendor("fast", 0.1, 0.0)))
    events = [entry.envelope.event.TYPE.split(".")[1:3] for entry in run.ledger]
    at = events.index(["vendor", "quoted"])
    assert events[at : at + 4] == [
        *(["vendor", "quoted"], ["clock", "ticked"], ["job", "submitted"], ["job", "withdrawal_requested"])
    ]


def test_the_clock_runs_until_the_last_input():
    assert ticks(simulate())[-1] == 2 * SLOT_S
    run = simulate((500, withdraw()))
    assert ticks(run)[-1] == 502
    assert withdraw() in [entry.envelope.event for entry in run.ledger], "though it comes after its tick"


def test_simulation_lasts_two_slots_beyond_last_deadline():
    assert ticks(simulate((0, bid())))[-1] == 60 + 2 * SLOT_S


def test_far_deadline_does_not_prolong_simulation():
    run = simulate((0, bid("near")), (1, bid("far", deadline_s=FAR_S)))
    assert {job.job_id for job in outcomes(run, JobCompleted)} == {"near", "far"}
    assert ticks(run)[-1] == 60 + 2 * SLOT_S
    assert ticks(simulate((1, bid("far", deadline_s=MAX_TIME_S))))[-1] <= 60


def test_inputs_beyond_bounds_of_events_are_refused():
    with pytest.raises(WorkloadError, match="beyond the year 2100"):
        simulate((MAX_TIME_S, withdraw()))


def test_successive_events_are_requested_one_by_one():
    queue, asked = EventQueue(), []

    def endless(first_s: float, step_s: float):
        for number in count():
            asked.append((first_s, number))
            yield first_s + number * step_s, ClockTicked(cell="c", time_s=first_s)

    queue.add_all(EventRank.REPORT, endless(1.0, 2.0))
    queue.add_all(EventRank.REPORT, endless(3.0, 1.0))
    queue.add_all(EventRank.REPORT, iter([]))
    queue.add(4.0, EventRank.SET_UP, ClockTicked(cell="c", time_s=0.0))
    popped = takewhile(lambda timed: timed[0] < 6, iter(queue.pop, None))
    assert [(time_s, event.time_s) for time_s, event in popped] == [
        *((1.0, 1.0), (3.0, 1.0), (3.0, 3.0), (4.0, 0.0), (4.0, 3.0), (5.0, 1.0), (5.0, 3.0))
    ]
    assert len(asked) == 4 + 5, "those that were taken, the one after them, and the next one of each"
