"""Random histories of a zone, with a fleet that trains, lags, fails, falls silent and comes back."""

import random

import pytest

from schemas.commands import SlotAssigned
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from streams.cell import Cell
from tests.support.cells import (
    EPOCH_S,
    Bench,
    ask,
    bid,
    failed,
    finished,
    heartbeat,
    offline,
    online,
    progressed,
    started,
    tick,
    vendor,
    withdraw,
)
from tests.support.invariants import check_outcome, check_prices_never_fell, check_zone, prices


def random_task(rng: random.Random, slot: int) -> dict:
    return {
        "work_samples": rng.randint(1, 300),
        "deadline_s": EPOCH_S + 10.0 * (slot + rng.randint(0, 8)),
        "memory_gib": rng.choice([0.5, 1.0, 2.0, 3.3]),
        "speed_samples_per_s": rng.choice(
            [{"fast": 5.0, "slow": 2.5}, {"fast": 3.0}, {"slow": 4.0}, {"fast": 10.0, "slow": 5.0}]
        ),
        "needs_preprocessing": rng.random() < 0.3,
    }


def execute(rng: random.Random, assigned: SlotAssigned):
    """What an executor may report of a slot: mostly all went well."""
    slot, node = assigned.slot, assigned.node
    for order in assigned.runs:
        fate = rng.random()
        if fate < 0.05:
            continue
        lost = rng.randint(0, order.resume_samples) if fate < 0.1 else 0
        base = order.resume_samples - lost
        yield started(node, slot, base, order.job_id)
        trained = order.quota_samples if fate < 0.8 else rng.randint(0, order.quota_samples)
        done = min(base + trained, order.work_samples)
        if rng.random() < 0.3:
            yield progressed(node, slot, (base + done) // 2, complete=False, job_id=order.job_id)
        if fate > 0.97:
            yield failed(node, slot, done, rng.random() < 0.3, order.job_id)
        elif done >= order.work_samples:
            yield finished(node, slot, done, order.job_id)
        else:
            yield progressed(node, slot, done, job_id=order.job_id)


@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_after_every_event(seed):
    rng = random.Random(seed)
    bench = Bench.configured()
    admitted, ended, judged = set(), set(), set()

    def send(event):
        if event is None:
            return []
        before = prices(bench.zone)
        outcomes = bench.send(event)
        check_zone(bench.zone)
        check_prices_never_fell(before, bench.zone)
        for outcome in outcomes:
            check_outcome(outcome)
            match outcome:
                case JobAdmitted():
                    admitted.add(outcome.job_id)
                    judged.add(outcome.job_id)
                case JobRejected():
                    judged.add(outcome.job_id)
                case JobCompleted() | JobRefunded() | JobWithdrawn():
                    assert outcome.job_id in admitted - ended, "each admitted job ends once"
                    ended.add(outcome.job_id)
        return outcomes

    bids = 0
    for slot in range(30):
        assigned = [o for o in send(tick(slot)) if isinstance(o, SlotAssigned)]
        reports = [report for command in assigned for report in execute(rng, command)]
        rng.shuffle(reports)
        reports.sort(key=lambda report: report.job_id)
        arrivals = [
            bid(f"j{bids + n}", rng.uniform(0, 20), **random_task(rng, slot))
            for n in range(rng.randint(0, 4))
        ]
        bids += len(arrivals)
        others = [
            rng.choice([vendor("slow", rng.uniform(0, 1), 20.0), vendor("fast", rng.uniform(0, 2), 0.0)]),
            rng.choice([offline, online, heartbeat])(rng.choice(["a1", "a2", "b1"])),
            withdraw(f"j{rng.randint(0, bids)}") if rng.random() < 0.3 else None,
            ask(**random_task(rng, slot)) if rng.random() < 0.3 else None,
        ]
        for event in [*arrivals, *reports, *others]:
            send(event)
        if rng.random() < 0.2:
            bench.cell = Cell.restore(bench.cell.snapshot())
    for slot in range(30, 42):
        send(tick(slot))
    assert judged == {f"j{number}" for number in range(bids)}, "every bid is decided"
    assert admitted == ended, "every admitted job ends in an adapter, a refund or a withdrawal"
    assert admitted
    twin = Bench()
    twin.send(*[entry.envelope.event for entry in bench.ledger])
    assert [d.canonical for d in twin.decisions] == [d.canonical for d in bench.decisions]
