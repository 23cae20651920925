"""Assumed speed of a task, and the party that answers for a slower one."""

import random

import pytest

from schemas.auction.evidence import JobReplanned, ZonePriced
from schemas.cells import ThroughputRow
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded
from schemas.lora_commands import RunCancelled, SlotAssigned
from streams.cell.state_machine import Cell
from streams.policies.auction.planned_job import LATE_REPORT_SLOTS
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    CheckedBench,
    ask,
    bid,
    failed,
    finished,
    node_seen,
    nodes_by_slot,
    offline,
    online,
    progressed,
    silent,
    started,
    tick,
    vendor,
    zone,
)


def row(gpu_type: str, samples_per_s: float) -> ThroughputRow:
    return ThroughputRow(
        gpu_type=gpu_type,
        rank=64,
        batch_size=8,
        sequence_length=512,
        samples_per_s=samples_per_s,
        memory_gib=2.0,
    )


def bench_with(*rows: ThroughputRow, **changes) -> CheckedBench:
    return CheckedBench.configured(zones=(zone(throughput=rows, **changes),))


@pytest.mark.parametrize(
    ("declared", "rows", "counted"),
    [
        (None, (row("fast", 5.0),), [("fast", 5.0, "row")]),
        ({"fast": 5.0}, (row("fast", 5.0),), [("fast", 5.0, "row")]),
        ({"fast": 4.0}, (row("fast", 5.0),), [("fast", 5.0, "raised_to_row")]),
        ({"fast": 50.0}, (row("fast", 5.0),), [("fast", 5.0, "capped_by_row")]),
        ({"fast": 4.0}, (), [("fast", 4.0, "declared")]),
        (
            {"slow": 5.0, "fast": 9.0},
            (row("fast", 5.0),),
            [("fast", 5.0, "capped_by_row"), ("slow", 5.0, "declared")],
        ),
    ],
)
def test_offer_names_speeds_and_their_source(declared, rows, counted):
    bench = bench_with(*rows)
    (quoted,) = bench.send(ask(speed_samples_per_s=declared))
    (admitted,) = bench.send(bid(speed_samples_per_s=declared))
    assert [(s.gpu_type, s.samples_per_s, s.source) for s in admitted.evidence.offer.speeds] == counted
    assert quoted.evidence.offer.speeds == admitted.evidence.offer.speeds
    first, node = min(nodes_by_slot(admitted).items())
    assigned = next(o for o in bench.send(*map(tick, range(first + 1))) if isinstance(o, SlotAssigned))
    source = {speed.gpu_type: speed.source for speed in admitted.evidence.offer.speeds}
    assert assigned.runs[0].speed_is_declared == (source["slow" if node == "b1" else "fast"] == "declared")


def test_false_speed_claim_pays_the_honest_price():
    # It leaves room for no other task on a node, and trains a twentieth of what the node could.
    task = {"memory_gib": 8.0, "work_samples": 30}
    prices = {}
    for speed in (None, 0.5, 5.0):
        bench = bench_with(row("fast", 0.5))
        # Others have made the nodes' memory dear.
        for number in range(2):
            other = {"work_samples": 300, "speed_samples_per_s": {"fast": 5.0}, "memory_gib": 3.0}
            bench.send(bid(f"other{number}", **other))
        declared = None if speed is None else {"fast": speed}
        (quoted,) = bench.send(ask(**task, speed_samples_per_s=declared))
        prices[speed] = quoted.evidence.offer.price if quoted.evidence.offer.plan else quoted.reason
    assert prices[5.0] == prices[0.5] == prices[None]


def claim(**changes):
    """Return a task that its user declares to train 50 samples in a slot, of a shape new to the zone."""
    return bid(**{"speed_samples_per_s": {"fast": 5.0}, "work_samples": 200, **changes})


def test_failed_speed_claim_ends_job_at_cost(bench):
    (admitted,) = bench.send(claim())
    assert admitted.evidence.offer.speeds[0].source == "declared"
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    refunded, cancelled = bench.send(progressed(node, 0, 5, node_s=SLOT_S))
    assert isinstance(refunded, JobRefunded)
    assert refunded.reason == "slower_than_declared"
    # Four slots at half a unit were paid for, and one is spent.
    assert (refunded.refund_micros, refunded.retained_micros) == (3 * UNIT // 2, UNIT // 2)
    assert refunded.evidence.certificate.difference.failed_micros == -50 * UNIT + 3 * UNIT // 2
    assert cancelled == RunCancelled(zone="z", node=node, job_id="j")
    assert refunded.facts["lacking_samples"] == 45


def test_claim_with_impossible_deadline_wins_no_room(bench):
    bench.send(vendor("fast", 3.0, 0.0))
    (admitted,) = bench.send(
        claim(speed_samples_per_s={"fast": 10.0}, deadline_s=EPOCH_S + 20, needs_preprocessing=True)
    )
    assert admitted.payment_micros == 5 * UNIT
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    refunded, _ = bench.send(progressed(node, 0, 10, node_s=SLOT_S))
    assert (refunded.reason, refunded.retained_micros) == ("slower_than_declared", 4 * UNIT)


@pytest.mark.parametrize(
    ("done", "node_s"),
    [(0, 0.0), (20, 4.0), (25, 5.0), (40, 5.0), (47, 9.4)],
    ids=["never had it", "crowded", "late", "late, and faster than declared", "a little late"],
)
def test_run_without_node_is_replanned_at_no_charge(bench, done, node_s):
    (admitted,) = bench.send(claim())
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    (replanned,) = bench.send(progressed(node, 0, done, node_s=node_s))
    assert isinstance(replanned, JobReplanned)
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 200 - done)
    assert bench.job("j")["payment_micros"] == admitted.payment_micros


def test_user_answers_for_own_part_of_cut_slot(bench):
    # The plan of 160 samples has 40 to spare: 10 of them are lost by the claim, 25 by a late start.
    (admitted,) = bench.send(claim(work_samples=160))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    assert bench.send(progressed(node, 0, 15, node_s=5.0)) == []
    bench.send(tick(1), started(node, 1, 15))
    (replanned,) = bench.send(progressed(node, 1, 40, node_s=5.0))
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 120)


def test_spare_of_plan_covers_small_overclaim(bench):
    (admitted,) = bench.send(claim(work_samples=180))
    done = 0
    for slot, node in nodes_by_slot(admitted).items():
        bench.send(tick(slot), started(node, slot, done))
        done += 45
        report = finished(node, slot, done) if done == 180 else progressed(node, slot, done, node_s=SLOT_S)
        outcomes = bench.send(report)
    assert isinstance(outcomes[0], JobCompleted)


@pytest.mark.parametrize("declared", [None, {"fast": 5.0}, {"fast": 4.0}, {"fast": 90.0}])
def test_the_zones_own_row_is_the_providers_word(declared):
    bench = bench_with(row("fast", 5.0))
    (admitted,) = bench.send(bid(speed_samples_per_s=declared))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    (replanned,) = bench.send(progressed(node, 0, 5, node_s=SLOT_S))
    assert isinstance(replanned, JobReplanned)


def test_lost_node_fails_no_claim(bench):
    (admitted,) = bench.send(claim())
    node = nodes_by_slot(admitted)[0]
    _, replanned = bench.send(tick(0), started(node, 0, 0), offline(node))[-2:]
    assert isinstance(replanned, JobReplanned)
    # A late report of the executor that left changes nothing of that.
    assert bench.send(progressed(node, 0, 5, node_s=SLOT_S))[1:] == []


def test_lost_checkpoint_fails_no_claim(bench):
    (admitted,) = bench.send(claim())
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), progressed(nodes[0], 0, 50), tick(1))
    (replanned,) = bench.send(started(nodes[1], 1, 10))
    assert replanned.reason == "behind_plan"
    assert bench.send(progressed(nodes[1], 1, 60, node_s=SLOT_S)) == []


def test_unknown_start_of_run_fails_no_claim(bench):
    (admitted,) = bench.send(claim())
    (replanned,) = bench.send(tick(0), progressed(nodes_by_slot(admitted)[0], 0, 5, node_s=SLOT_S))[1:][-1:]
    assert isinstance(replanned, JobReplanned)


def test_unreported_earlier_slot_fails_no_claim(bench):
    (admitted,) = bench.send(claim())
    nodes = nodes_by_slot(admitted)
    # Nothing came of slot 0: its node hung. Slot 1 trained all that it should.
    bench.send(tick(0), tick(1), started(nodes[1], 1, 0))
    (replanned,) = bench.send(progressed(nodes[1], 1, 50, node_s=SLOT_S))
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 150)


def late_claim(bench, **changes):
    """A task of one batch that claims 40 samples per second on a node of its own; its run has begun."""
    task = {"work_samples": 128, "deadline_s": EPOCH_S + 20, "speed_samples_per_s": {"fast": 8.0}}
    (admitted,) = bench.send(claim(**{**task, **changes}))
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0))
    return admitted, nodes


def test_step_beyond_slots_and_deadline_fails_claim(bench):
    admitted, nodes = late_claim(bench)
    for slot in range(1, 5):
        assert [o for o in bench.send(tick(slot)) if not isinstance(o, SlotAssigned | ZonePriced)] == []
    # A report of progress that comes just before the last one changes nothing.
    assert bench.send(progressed(nodes[0], 0, 128, complete=False, node_s=44.0)) == []
    refunded, *cancelled = bench.send(progressed(nodes[0], 0, 128, node_s=45.0))
    assert (refunded.reason, refunded.refund_micros) == ("slower_than_declared", 0)
    assert refunded.retained_micros == admitted.payment_micros
    assert {command.node for command in cancelled} == set(nodes.values())


def test_claim_with_open_step_is_not_replanned(bench):
    (admitted,) = bench.send(claim(work_samples=100))
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0))
    late = [o for o in bench.send(tick(1), tick(2), tick(3)) if isinstance(o, JobReplanned | JobRefunded)]
    assert late == []
    (refunded, *_) = bench.send(progressed(nodes[0], 0, 8, node_s=3.5 * SLOT_S))
    assert refunded.reason == "slower_than_declared"


@pytest.mark.parametrize("done", [0, 4, 10], ids=["no step", "one step", "as declared"])
def test_run_delayed_by_other_step_is_replanned(bench, done):
    (admitted,) = bench.send(claim(work_samples=100))
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1), tick(2), tick(3))
    # Of 30 s it had two itself at most; a run that was left no time for a step fails.
    report = failed(nodes[0], 0, 0, False) if done == 0 else progressed(nodes[0], 0, done, node_s=done / 5.0)
    (replanned,) = bench.send(report)
    assert isinstance(replanned, JobReplanned)
    assert replanned.remaining_samples == 100 - done


@pytest.mark.parametrize("deadline_s", [20.0, 60.0])
def test_run_delayed_too_long_is_refunded(bench, deadline_s):
    (admitted,) = bench.send(claim(work_samples=100, deadline_s=EPOCH_S + deadline_s))
    nodes = nodes_by_slot(admitted)
    bench.send(*[tick(0), started(nodes[0], 0, 0)], *map(tick, range(1, 9)))
    refunded = bench.send(progressed(nodes[0], 0, 4, node_s=0.8))[0]
    assert (refunded.reason, refunded.refund_micros) == ("deadline_passed", admitted.payment_micros)


@pytest.mark.parametrize("lost", [silent, offline, online], ids=["silent", "left", "began anew"])
def test_work_of_lost_executor_is_at_providers_cost(bench, lost):
    admitted, nodes = late_claim(bench, deadline_s=EPOCH_S + 20)
    outcomes = bench.send(node_seen(nodes[0]), lost(nodes[0]), tick(1), tick(2), tick(3))
    (refunded,) = [outcome for outcome in outcomes if isinstance(outcome, JobRefunded)]
    assert refunded.refund_micros == admitted.payment_micros
    assert next(o.node for o in outcomes if isinstance(o, RunCancelled)) == nodes[0]


def test_run_with_unknown_start_is_not_awaited(bench):
    (admitted,) = bench.send(claim(deadline_s=EPOCH_S + 40))
    outcomes = bench.send(tick(0), tick(1), tick(2))
    (refunded,) = [outcome for outcome in outcomes if isinstance(outcome, JobRefunded)]
    assert refunded.refund_micros == admitted.payment_micros


def test_late_report_at_providers_cost_is_not_awaited():
    bench = bench_with(row("fast", 5.0))
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    node = nodes_by_slot(admitted)[0]
    outcomes = bench.send(tick(0), started(node, 0, 0), tick(1), tick(2))
    (refunded,) = [outcome for outcome in outcomes if isinstance(outcome, JobRefunded)]
    assert refunded.refund_micros == admitted.payment_micros
    assert node in [outcome.node for outcome in outcomes if isinstance(outcome, RunCancelled)]


def test_silent_live_executor_is_awaited_for_limited_time(bench):
    admitted, _ = late_claim(bench)
    over = []
    for slot in range(1, LATE_REPORT_SLOTS + 2):
        over += [o for o in bench.send(tick(slot)) if isinstance(o, JobRefunded)]
        assert bool(over) == (slot > LATE_REPORT_SLOTS)
    assert over[0].refund_micros == admitted.payment_micros


def test_overtaken_late_run_still_checks_claim(bench):
    other = {"work_samples": 100, "memory_gib": 8.0, "deadline_s": EPOCH_S + 10}
    bench.send(bid("other", speed_samples_per_s={"fast": 10.0}, **other))
    (admitted,) = bench.send(claim(deadline_s=EPOCH_S + 40))
    nodes = nodes_by_slot(admitted)
    assert nodes[0] != nodes[1]
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1), started(nodes[1], 1, 0), tick(2))
    ignored, refunded, *cancelled = bench.send(progressed(nodes[0], 0, 8, node_s=25.0))
    assert (ignored.reason, refunded.reason) == ("stale_report", "slower_than_declared")
    assert [command.node for command in cancelled] == [nodes[1]]


def test_late_step_covered_by_other_slots_ends_nothing(bench):
    # The plan has 40 samples to spare; the step of 15 s trained what the slot was to train.
    (admitted,) = bench.send(claim(work_samples=160))
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1))
    assert bench.send(progressed(nodes[0], 0, 50, node_s=15.0)) == []


def test_step_into_next_slot_counts_against_claim(bench):
    # One step of 64 samples takes 19 s where 50 samples in 10 s were promised, and slot 1 begins too late.
    (admitted,) = bench.send(claim())
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1))
    assert bench.send(progressed(nodes[0], 0, 64, node_s=19.0)) == []
    bench.send(started(nodes[1], 1, 64), tick(2))
    refunded, *_ = bench.send(progressed(nodes[1], 1, 64, node_s=0.0))
    assert (refunded.reason, refunded.retained_micros) == ("slower_than_declared", 3 * UNIT // 2)


def test_snapshot_keeps_awaited_late_report(bench):
    admitted, nodes = late_claim(bench)
    bench.send(tick(1), tick(2), tick(3))
    bench.cell = Cell.restore(bench.cell.snapshot())
    refunded, *_ = bench.send(progressed(nodes[0], 0, 128, node_s=35.0))
    assert (refunded.reason, refunded.refund_micros) == ("slower_than_declared", 0)
    assert refunded.retained_micros == admitted.payment_micros


def trained(true_samples_per_s: float, declared: float, seed: int) -> int:
    """Return the gain of a user by a claim: 100 units for an adapter, less the payment, with a random load of
    others."""
    bench = CheckedBench.configured(zones=(zone(horizon_slots=12),))
    rng = random.Random(seed)
    for number in range(rng.randint(0, 40)):
        others = {"work_samples": rng.randint(100, 500), "memory_gib": rng.choice([1.0, 3.0, 6.0])}
        bench.send(bid(f"other{number}", rng.uniform(1, 20), deadline_s=EPOCH_S + 120, **others))
    mine = {"work_samples": 40, "deadline_s": EPOCH_S + 120, "memory_gib": rng.choice([1.0, 4.0, 8.0])}
    (verdict,) = bench.send(bid("mine", 100.0, speed_samples_per_s={"fast": declared}, **mine))
    if not isinstance(verdict, JobAdmitted):
        return 0
    done, gained = 0, -verdict.payment_micros
    for slot in range(14):
        for assigned in [o for o in bench.send(tick(slot)) if isinstance(o, SlotAssigned)]:
            for order in [order for order in assigned.runs if order.job_id == "mine"]:
                bench.send(started(assigned.node, slot, done, "mine"))
                done = min(done + min(order.quota_samples, int(true_samples_per_s * SLOT_S)), 40)
                report = (
                    finished(assigned.node, slot, done, "mine")
                    if done == 40
                    else progressed(assigned.node, slot, done, job_id="mine", node_s=SLOT_S)
                )
                for outcome in bench.send(report):
                    assert not isinstance(outcome, JobReplanned), "nothing is planned again for nothing"
                    if isinstance(outcome, JobCompleted):
                        return gained + 100 * UNIT
                    if isinstance(outcome, JobRefunded):
                        return gained + outcome.refund_micros
        for job in [job for job in bench.jobs if job["job_id"] != "mine"]:
            job_id, done_before = job["job_id"], job["samples_done"]
            for part in [part for part in job["plan"] if part["slot"] == slot]:
                bench.send(
                    started(part["node"], slot, done_before, job_id),
                    progressed(part["node"], slot, done_before + part["samples"], job_id=job_id),
                )
    raise AssertionError("the job never ended")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 9))
def test_overclaiming_never_beats_truth(seed):
    honest = trained(1.0, 1.0, seed)
    assert honest >= 0
    for factor in (1.1, 1.5, 2.0, 4.0, 10.0):
        assert trained(1.0, factor, seed) <= honest, f"{factor} times the truth"


def test_data_beyond_vendor_payment_end_job(bench):
    bench.send(vendor("fast", 3.0, 0.0))
    (admitted,) = bench.send(bid(needs_preprocessing=True))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0))
    refunded, cancelled = bench.send(started(node, 0, 0, dataset_samples=1_001))
    assert refunded.reason == "dataset_size_misstated"
    assert refunded.facts == {"path": "d.jsonl", "counted_samples": 1_001, "declared_samples": 1_000}
    # The vendor and the slot that has begun are spent.
    assert (refunded.refund_micros, refunded.retained_micros) == (3 * UNIT // 2, 3 * UNIT + UNIT // 2)
    assert cancelled == RunCancelled(zone="z", node=node, job_id="j")


@pytest.mark.parametrize(
    ("counted", "needs_preprocessing"), [(1_000, True), (999, True), (None, True), (10**6, False)]
)
def test_other_sizes_of_the_data_change_nothing(bench, counted, needs_preprocessing):
    bench.send(vendor("fast", 3.0, 0.0))
    (admitted,) = bench.send(bid(needs_preprocessing=needs_preprocessing))
    bench.send(tick(0))
    assert bench.send(started(nodes_by_slot(admitted)[0], 0, 0, dataset_samples=counted)) == []
