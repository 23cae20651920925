"""Nothing escapes `Cell.handle`: an event that the codec has read and the cell fails on would be read again,
and end its worker, for ever."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from schemas.auction.batches import BatchSolution, SolvedPlan
from schemas.auction.bids import QuoteAccepted, VendorLeft, VendorQuoted
from schemas.auction.deliveries import (
    PreprocessingAccepted,
    PreprocessingClosed,
    PreprocessingDelivered,
    PreprocessingFailed,
    PreprocessingOrdered,
)
from schemas.auction.evidence import JobReplanned, ZonePriced
from schemas.auction.settings import TitanPolicy
from schemas.base import MAX_MICROS, MAX_TIME_S, Event
from schemas.cells import CellConfigured, Node, ThroughputRow
from schemas.changes import (
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_event_line
from schemas.commands import RunDisowned
from schemas.decisions import (
    CellAccepted,
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    NodeStatusChanged,
    ZoneAccepted,
)
from schemas.fleet import (
    CommandRefused,
    NodeOffline,
    NodeOnline,
    NodeSeen,
    NodeSilent,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded, ReclaimPlanned
from schemas.lora import LoraWorkload
from schemas.lora_commands import RunCancelled, SlotAssigned
from schemas.rules import RULES_VERSION, RulesAdopted
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    CheckedBench,
    ask,
    bid,
    configuration,
    delivered,
    failed,
    failed_order,
    offline,
    online,
    refused,
    silent,
    tick,
    vendor_left,
    withdraw,
    zone,
)
from tests.support.examples import seeds
from tests.support.histories import history, recorded
from tests.support.invariants import handle_checked
from tests.support.loans import SERVERS, lending_cell, offered, reclaimed, reported
from tests.support.mutations import any_odd_value, mutated_bytes, mutated_json
from tests.support.plans import HeldCells, held_cells
from tests.support.rules import adoption
from tests.support.solves import titan_answer

SEEDS = 10
MUTANTS_PER_SEED = 1_050
"""Number of mutants per seed that the codec must read."""
MUTANTS_BETWEEN = 6
"""After each event of the undisturbed history."""
WEIGHTS: dict[type[Event], float] = {
    **dict.fromkeys((JobSubmitted, RunStarted, RunProgressed), 3.0),
    **dict.fromkeys((NodeOnline, NodeOffline, CellConfigured), 0.2),
    **dict.fromkeys((NodeRetired, NodeLent, NodeCordoned), 0.1),
}
"""Nodes are mostly up, or nothing would ever run."""
CONFIGURATIONS = 300
EVENTS_PER_CONFIGURATION = 15

ROWS = tuple(
    ThroughputRow(
        gpu_type=name, rank=64, batch_size=8, sequence_length=512, samples_per_s=speed, memory_gib=2.0
    )
    for name, speed in (("fast", 5.0), ("slow", 2.5))
)
SETBACKS = (JobReplanned, JobRefunded, RunCancelled, RunDisowned, EventIgnored)
MOVES = (NodeMoved, NodeStatusChanged, LoanChanged, ReclaimEnded)
"""Whatever frees a leaving node lets it go."""
CHANGES = (*MOVES, ZoneAccepted, ZonePriced, JobRejected, *SETBACKS)
ANSWERS: dict[type[Event], tuple[tuple[type, ...], bool]] = {
    CellConfigured: ((CellAccepted, EventIgnored), False),
    ClockTicked: (
        (NodeStatusChanged, ZonePriced, SlotAssigned, SolveRequested, JobRejected, *SETBACKS),
        True,
    ),
    JobSubmitted: ((JobAdmitted, JobRejected), True),
    JobQuoteRequested: ((JobQuoted,), False),
    JobWithdrawalRequested: ((JobWithdrawn, EventIgnored), False),
    VendorQuoted: ((QuoteAccepted, EventIgnored), False),
    VendorLeft: ((QuoteAccepted, EventIgnored), False),
    PreprocessingDelivered: ((PreprocessingAccepted, PreprocessingClosed, *SETBACKS), True),
    PreprocessingFailed: ((PreprocessingClosed, PreprocessingOrdered, *SETBACKS), True),
    NodeOnline: ((NodeStatusChanged, *SETBACKS), True),
    NodeSeen: ((NodeStatusChanged, *SETBACKS), True),
    NodeSilent: ((NodeStatusChanged, *SETBACKS), True),
    NodeOffline: ((NodeStatusChanged, *SETBACKS), True),
    CommandRefused: ((NodeStatusChanged, EventIgnored), False),
    RunStarted: ((NodeStatusChanged, *SETBACKS), True),
    RunProgressed: ((NodeStatusChanged, *SETBACKS), True),
    RunFinished: ((NodeStatusChanged, JobCompleted, EventIgnored), False),
    RunFailed: ((NodeStatusChanged, *SETBACKS), True),
    InferenceLoadReported: ((EventIgnored,), True),
    CapacityOffered: ((OfferAnswered, *SETBACKS), False),
    CapacityReclaimed: ((ReclaimPlanned, *SETBACKS), False),
    SolveFinished: ((JobAdmitted, JobRejected, EventIgnored), True),
    RulesAdopted: ((EventIgnored,), False),
    **dict.fromkeys(
        (
            *(ZoneConfigured, NodeRegistered, NodeRetired, NodeLent, NodeReturned),
            *(NodeCordoned, NodeUncordoned),
        ),
        (CHANGES, False),
    ),
}
"""Decisions that may follow each type of event, and whether it may change state without one."""

NAMES = (
    "a1",
    "b1",
    "n1",
    "c",
    "z",
    "y",
    "u",
    "slow",
    "fast",
    "tiny",
    "x" * 128,
    *(f"j{n}" for n in range(0, 40, 3)),
)
INTEGERS = (0, 1, 2, 5, 50, 100, 10**6, 10**12 - 1, 10**12, MAX_MICROS)
NUMBERS = (
    *(0.0, 5e-324, 1e-9, 0.5, 1.0, 2.5, 7.9, 8.0, 10.0, 1e6, 1e9, 31_536_000.0, MAX_TIME_S),
    *(EPOCH_S + SLOT_S * slot for slot in (-1, 0, 1, 3, 10, 40)),
)


def plausible(source: random.Random, value: Any) -> Any:
    """A value of the same type that some field may hold, or anything."""
    if source.random() < 0.1:
        return any_odd_value(source, value)
    match value:
        case bool():
            return source.random() < 0.5
        case int():
            return source.choice([*INTEGERS, value + 1, max(value - 1, 0), 2 * value])
        case float() | None:
            return source.choice([*NUMBERS, None, 2 * (value or 1.0)])
        case str():
            return source.choice(NAMES)
        case dict():
            return {source.choice(("fast", "slow")): source.choice(NUMBERS)}
    return value


def mutants(source: random.Random, event: Event) -> Iterator[Event]:
    """Events that were made of this one, and that the codec reads; endless."""
    good = Envelope("e", "test", "", event)
    payload = json.loads(good.value)
    while True:
        if source.random() < 0.1:
            line = mutated_bytes(source, good.canonical)
        else:
            mutated = mutated_json(source, payload, plausible)
            line = json.dumps({"id": "e", "type": event.TYPE, "source": "test", "data": mutated}).encode()
        try:
            read = decode_event_line(line).event
        except InvalidRecordError:
            continue
        if read != event:
            yield read


def check_answer(event: Event, decisions: list[Decision]) -> None:
    """An outcome of the right kind, or silence where that is an answer; and bytes that can be read again."""
    kinds, may_be_silent = ANSWERS[type(event)]
    assert decisions or may_be_silent, f"no answer to {event!r}"
    for decision in decisions:
        assert isinstance(decision.outcome, (*kinds, *MOVES)), f"{decision.outcome!r} because of {event!r}"
        assert json.loads(decision.canonical)["id"] == decision.id


def answer(request_id: str, *job_ids: str) -> SolveFinished:
    """A solver's answer that may fit a request or not."""
    node_slots = ((1, "a1"), (2, "a2"), (3, "b1"))
    return SolveFinished(
        cell="c",
        zone="z",
        request_id=request_id,
        solution=BatchSolution(
            status="feasible",
            plans=tuple(SolvedPlan(job_id=job_id, node_slots=node_slots) for job_id in job_ids),
            bound_micros=None,
        ),
        solve_s=0.5,
    )


def is_far_ahead(cell: Cell, event: Event) -> bool:
    """Whether it is a tick after which nothing more would happen in time."""
    return isinstance(event, ClockTicked) and event.time_s > (cell.time_s or 0.0) + 3 * SLOT_S


def feed(cell: Cell, event: Event) -> list[Decision]:
    """Have it handled and answered."""
    entry = LedgerEvent(cell.offset + 1, Envelope(f"m{cell.offset}", "test", "", event))
    decisions = handle_checked(cell, entry)
    check_answer(event, decisions)
    return decisions


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_mutated_events_among_good_ones_are_all_answered(seed: int) -> None:
    rng, source = random.Random(seed), random.Random(f"mutants/{seed}")
    bench = CheckedBench.configured()
    rare = (
        configuration(),
        vendor_left("slow"),
        delivered("slow", "0/j0", "j0"),
        failed_order("slow", "0/j0", "j0"),
        online("a1"),
        offline("b1"),
        silent("b1"),
        withdraw("j0"),
        ask(),
        failed("a1", 0, 1, permanent=False),
        refused("a1"),
        reported(0.5),
        offered("s1", "s2"),
        reclaimed(1, due_slot=9),
        answer("batch-1", "j0"),
        adoption(Cell("c")),
        ZoneConfigured(cell="c", zone=zone(id="y", nodes=(Node(id="y1", gpu_type="fast", tariff="t"),))),
        NodeRegistered(cell="c", node="n1", zone="z", gpu_type="fast", tariff="t"),
        NodeRetired(cell="c", node="n1"),
        NodeLent(cell="c", node="a1", zone="y"),
        NodeReturned(cell="c", node="a1"),
        NodeCordoned(cell="c", node="b1"),
        NodeUncordoned(cell="c", node="b1"),
    )
    seen: dict[type[Event], Event] = {type(event): event for event in rare}
    handled = Counter[type[Event]]()
    coming = history(rng, bids=10_000, late_share=0.2)
    held, known = HeldCells(), 0
    event = next(coming)
    while handled.total() < MUTANTS_PER_SEED:
        seen[type(event)] = event
        outcomes = bench.send(event)
        held.fold(bench.decisions[known:])
        known = len(bench.decisions)
        kinds = sorted(seen, key=lambda kind: kind.TYPE)
        weights = [WEIGHTS.get(kind, 1.0) for kind in kinds]
        for kind in source.choices(kinds, weights, k=MUTANTS_BETWEEN):
            good = seen[kind]
            if isinstance(good, JobSubmitted):
                good = good.model_copy(update={"job_id": f"m{handled.total()}"})
            mutant = next(mutants(source, good))
            handled[kind] += 1
            if is_far_ahead(bench.cell, mutant):
                twin = Cell.restore(bench.cell.snapshot())
                feed(twin, mutant)
                feed(twin, bid("after"))
            else:
                held.fold(feed(bench.cell, mutant))
            assert held.by_job == held_cells(bench.zone), "the decisions tell who holds which cells"
        bench.ledger += [None] * (bench.cell.offset + 1 - len(bench.ledger))
        event = coming.send(outcomes)
    assert set(handled) == set(ANSWERS), "every type of event"
    # Whose deadline is not over by then ends with the nodes.
    bench.send(tick(10_000), *map(offline, bench.cell.nodes.layout.zone_of))
    assert not bench.described["jobs"], "every job ends"


@pytest.mark.parametrize("seed", seeds(3))
def test_mutated_events_of_loans_are_all_answered(seed: int) -> None:
    source = random.Random(f"loans/{seed}")
    bench = CheckedBench()
    bench.send(lending_cell(), tick(0))
    decided = Counter[type]()
    for slot in range(40):
        bench.send(tick(slot), bid(f"j{slot}", deadline_s=EPOCH_S + SLOT_S * (slot + 8)))
        good = (
            reported(source.choice([0.0, 0.2, 0.5]), slot),
            offered(*source.sample(SERVERS, 4), id=f"o{slot}"),
            online(source.choice(SERVERS)),
            reclaimed(source.randint(1, 3), slot + 4, id=f"r{slot}"),
        )
        for event in good:
            for mutant in itertools.islice(mutants(source, event), 4):
                if not is_far_ahead(bench.cell, mutant):
                    decided.update(type(decision.outcome) for decision in feed(bench.cell, mutant))
            bench.ledger += [None] * (bench.cell.offset + 1 - len(bench.ledger))
            decided.update(type(outcome) for outcome in bench.send(event))
    assert min(decided[kind] for kind in (OfferAnswered, ReclaimPlanned, ReclaimEnded, EventIgnored)) > 10


@pytest.mark.parametrize("seed", seeds(4))
def test_mutated_answers_of_solvers_are_all_answered(seed: int) -> None:
    source = random.Random(f"answers/{seed}")
    bench = CheckedBench.configured(zones=(zone(policy=TitanPolicy(kind="titan"), horizon_slots=20),))
    decided = Counter[type]()
    for slot in range(60):
        jobs = [f"{slot}-{number}" for number in range(source.randint(1, 4))]
        arrivals = [
            bid(job, source.uniform(1, 20), deadline_s=EPOCH_S + SLOT_S * (slot + source.randint(3, 9)))
            for job in jobs
        ]
        tasks = [
            arrival.model_copy(update={"workload": fitting(source, arrival.workload)}) for arrival in arrivals
        ]
        asked = bench.send(tick(slot), *tasks, tick(slot + 0.6))
        for requested in [outcome for outcome in asked if isinstance(outcome, SolveRequested)]:
            good = titan_answer(requested)
            for mutant in itertools.islice(mutants(source, good), source.randint(0, 2)):
                feed(bench.cell, mutant)
            bench.ledger += [None] * (bench.cell.offset + 1 - len(bench.ledger))
            decided.update(type(outcome) for outcome in bench.send(good))
    assert decided[JobAdmitted] > 10
    assert decided[EventIgnored] > 10, "answered before, by a mutant"


def fitting(source: random.Random, workload: LoraWorkload) -> LoraWorkload:
    """A workload of another size that a few slots hold."""
    return workload.model_copy(update={"work_samples": source.randint(10, 150)})


@pytest.mark.slow
def test_cells_of_mutated_configurations_answer_good_events() -> None:
    source = random.Random("configurations")
    # Intake lets no others pass: see `tests/streams/test_rules.py`.
    known = configuration(zones=(zone(throughput=ROWS),))
    configurations = (each for each in mutants(source, known) if each.rules == RULES_VERSION)
    good = recorded(random.Random(1), configuration(), bids=8)[1:]
    for _ in range(CONFIGURATIONS):
        mutant = next(configurations)
        cell = Cell(mutant.cell)
        feed(cell, mutant)
        for event in good[:EVENTS_PER_CONFIGURATION]:
            feed(cell, event)
