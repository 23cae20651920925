"""Histories of a cell as they might happen: users, vendors, and a fleet that trains, lags, fails and returns.

All of cells like the small one of `tests.support.cells`, with any nodes.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.fleet import RunStarted
from schemas.lora_commands import RunOrder, SlotAssigned
from streams.cell.state_machine import Cell
from streams.policies.auction.planned_job import LATE_REPORT_SLOTS, slot_of_run
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    Bench,
    ask,
    bid,
    failed,
    finished,
    node_seen,
    offline,
    online,
    progressed,
    silent,
    started,
    tick,
    vendor,
    withdraw,
)

SMALL_FLEET = ("a1", "a2", "b1")
SLOTS_TO_THE_END = 12
"""After the last bid: more than any deadline and its grace."""

LateReports = dict[int, list[Event]]
"""By the slot in which they come."""

History = Generator[Event, list[Outcome], None]
"""Yields an event, and is sent the cell's decisions for it: executors carry out their commands."""


def history(
    rng: random.Random,
    bids: int,
    bids_per_slot: int = 4,
    patience_slots: int = 9,
    nodes: Sequence[str] = SMALL_FLEET,
    ahead_share: float = 0.15,
    late_share: float = 0.0,
) -> History:
    """Everything that happens to a configured cell from its first slot until its last job is over.

    Args:
        bids: how many there are in all, of job ids "j0", "j1", and so on.
        bids_per_slot: how many come in a slot at most.
        patience_slots: how far ahead a deadline is at most.
        nodes: their names.
        ahead_share: how many runs train more than their quota, as whole batches may.
        late_share: how many runs begin and do not report in their slot; half of them never do.
    """
    slot, sent = 0, 0
    late: LateReports = {}
    while sent < bids:
        assigned = [o for o in (yield tick(slot)) if isinstance(o, SlotAssigned)]
        arrivals = [
            bid(f"j{number}", rng.uniform(0, 20), **random_task(rng, slot, patience_slots))
            for number in range(sent, min(sent + rng.randint(0, bids_per_slot), bids))
        ]
        sent += len(arrivals)
        regrets = [withdraw(arrival.job_id) for arrival in arrivals if rng.random() < 0.15]
        reports = [report for command in assigned for report in _carry_out(rng, command, ahead_share)]
        asides = [*_of_users_and_vendors(rng, slot), *_of_nodes(rng, nodes)]
        prompt = list(_held_back(rng, reports, late, late_share)) if late_share else reports
        yield from _mixed(rng, [*arrivals, *regrets], prompt, late.pop(slot, []), asides)
        slot += 1
    for ahead in range(slot, slot + SLOTS_TO_THE_END + (LATE_REPORT_SLOTS if late_share else 0)):
        yield tick(ahead)
        yield from _mixed(rng, late.pop(ahead, []))


def random_task(rng: random.Random, slot: int, patience_slots: int = 9) -> dict[str, Any]:
    """A task for any of the nodes that may fit before its deadline, or may not."""
    return {
        "work_samples": rng.randint(1, 250),
        "deadline_s": EPOCH_S + SLOT_S * (slot + rng.randint(1, patience_slots)),
        "memory_gib": rng.choice([0.5, 1.0, 2.0, 3.3]),
        "speed_samples_per_s": rng.choice(
            [{"fast": 5.0, "slow": 2.5}, {"fast": 3.0}, {"slow": 4.0}, {"fast": 10.0, "slow": 5.0}]
        ),
        "needs_preprocessing": rng.random() < 0.3,
    }


def recorded(
    rng: random.Random,
    configuration: CellConfigured,
    bids: int,
    bids_per_slot: int = 4,
    patience_slots: int = 9,
    ahead_share: float = 0.15,
) -> list[Event]:
    """The configuration and a history after it, as a cell that is never disturbed makes it."""
    bench = Bench(cell=Cell(configuration.cell))
    bench.send(configuration)
    nodes = [node.id for node in configuration.zones[0].nodes]
    coming = history(rng, bids, bids_per_slot, patience_slots, nodes, ahead_share)
    event = next(coming)
    while True:
        outcomes = bench.send(event.model_copy(update={"cell": configuration.cell}))
        try:
            event = coming.send(outcomes)
        except StopIteration:
            return [entry.envelope.event for entry in bench.ledger]


def _carry_out(rng: random.Random, assigned: SlotAssigned, ahead_share: float) -> Iterator[Event]:
    """Yield an executor's possible reports of a slot, mostly of success."""
    for order in assigned.runs:
        yield from _run(rng, assigned.node, assigned.slot, order, ahead_share)


def _run(rng: random.Random, node: str, slot: int, order: RunOrder, ahead_share: float) -> Iterator[Event]:
    fate = rng.random()
    if fate < 0.05:
        return
    lost = rng.randint(0, order.resume_samples) if fate < 0.1 else 0
    base = order.resume_samples - lost
    counted = order.dataset.samples + (rng.random() < 0.08) if rng.random() < 0.5 else None
    yield started(node, slot, base, order.job_id, counted)
    trained = order.quota_samples if fate < 0.8 else rng.randint(0, order.quota_samples)
    if rng.random() < ahead_share:
        trained = order.quota_samples + rng.randint(0, order.quota_samples)
    done = min(base + trained, order.work_samples)
    if rng.random() < 0.3:
        yield progressed(node, slot, (base + done) // 2, complete=False, job_id=order.job_id)
    if fate > 0.97:
        yield failed(node, slot, done, rng.random() < 0.3, order.job_id)
    elif done >= order.work_samples:
        yield finished(node, slot, done, order.job_id)
    else:
        yield progressed(node, slot, done, job_id=order.job_id, node_s=rng.choice([0.0, 0.5, 1.0]) * SLOT_S)


def _held_back(
    rng: random.Random, reports: list[Event], late: LateReports, late_share: float
) -> Iterator[Event]:
    """The reports of a slot without those that come late, which are put into `late`, or never come."""
    fates: dict[str, int | None] = {}
    for report in reports:
        if isinstance(report, RunStarted):
            yield report
            if rng.random() < late_share:
                slot = slot_of_run(report.run_id, report.job_id)
                assert slot is not None
                fates[report.job_id] = rng.choice([None, slot + rng.randint(1, 6)])
        elif report.job_id not in fates:
            yield report
        elif (late_slot := fates[report.job_id]) is not None:
            late.setdefault(late_slot, []).append(report)


def _of_users_and_vendors(rng: random.Random, slot: int) -> Iterator[Event]:
    yield rng.choice([vendor("slow", rng.uniform(0, 1), 20.0), vendor("fast", rng.uniform(0, 2), 0.0)])
    if rng.random() < 0.3:
        yield ask(**random_task(rng, slot))


def _of_nodes(rng: random.Random, nodes: Sequence[str]) -> Iterator[Event]:
    for node in nodes:
        fate = rng.random()
        if fate < 0.87:
            yield node_seen(node)
        elif fate < 0.91:
            yield silent(node)
        elif fate < 0.95:
            yield offline(node)
        elif fate > 0.97:
            yield online(node)


def _mixed(rng: random.Random, *parts: list[Event]) -> Iterator[Event]:
    """All events, those of a part in their order."""
    waiting = [list(part) for part in parts if part]
    while waiting:
        part = rng.choice(waiting)
        yield part.pop(0)
        waiting = [part for part in waiting if part]
