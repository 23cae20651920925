"""How fast a task is taken to be, and who answers when it is slower."""

import random

import pytest

from schemas.cells import ThroughputRow
from schemas.commands import RunCancelled, SlotAssigned
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobReplanned
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    CheckedBench,
    ask,
    bid,
    finished,
    nodes_by_slot,
    offline,
    progressed,
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
        ({"fast": 4.0}, (row("fast", 5.0),), [("fast", 4.0, "declared_within_row")]),
        ({"fast": 50.0}, (row("fast", 5.0),), [("fast", 5.0, "capped_by_row")]),
        ({"fast": 4.0}, (), [("fast", 4.0, "declared")]),
        (
            {"slow": 5.0, "fast": 9.0},
            (row("fast", 5.0),),
            [("fast", 5.0, "capped_by_row"), ("slow", 5.0, "declared")],
        ),
    ],
)
def test_the_offer_says_what_speeds_it_counts_with_and_by_whose_word(declared, rows, counted):
    bench = bench_with(*rows)
    (quoted,) = bench.send(ask(speed_samples_per_s=declared))
    (admitted,) = bench.send(bid(speed_samples_per_s=declared))
    assert [(s.gpu_type, s.samples_per_s, s.source) for s in admitted.offer.speeds] == counted
    assert quoted.offer.speeds == admitted.offer.speeds


def test_a_memory_bound_task_that_claims_ten_times_its_speed_pays_what_an_honest_one_pays():
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
        prices[speed] = quoted.offer.price if quoted.offer.plan else quoted.reason
    assert prices[5.0] == prices[0.5] == prices[None]


def claim(**changes):
    """A task that its user says trains 50 samples in a slot, of no shape that the zone knows."""
    return bid(**{"speed_samples_per_s": {"fast": 5.0}, "work_samples": 200, **changes})


def test_a_claim_that_fails_ends_the_job_and_what_was_spent_is_kept(bench):
    (admitted,) = bench.send(claim())
    assert admitted.offer.speeds[0].source == "declared"
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    refunded, cancelled = bench.send(progressed(node, 0, 5, node_s=SLOT_S))
    assert isinstance(refunded, JobRefunded)
    assert refunded.reason == "slower_than_declared"
    # Four slots at half a unit were paid for, and one is spent.
    assert (refunded.refund_micros, refunded.retained_micros) == (3 * UNIT // 2, UNIT // 2)
    assert refunded.certificate.difference.failed_micros == -50 * UNIT + 3 * UNIT // 2
    assert cancelled == RunCancelled(zone="z", node=node, job_id="j")
    assert "45 samples less" in refunded.detail


def test_a_claim_with_an_impossible_deadline_is_no_free_way_to_room(bench):
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
def test_a_run_that_did_not_have_the_node_is_planned_again_for_nothing(bench, done, node_s):
    (admitted,) = bench.send(claim())
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    (replanned,) = bench.send(progressed(node, 0, done, node_s=node_s))
    assert isinstance(replanned, JobReplanned)
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 200 - done)
    assert bench.zone.book.jobs["j"].payment_micros == admitted.payment_micros


def test_of_a_slot_cut_short_a_user_answers_for_its_own_part_alone(bench):
    # The plan of 160 samples has 40 to spare: 10 of them are lost by the claim, 25 by a late start.
    (admitted,) = bench.send(claim(work_samples=160))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    assert bench.send(progressed(node, 0, 15, node_s=5.0)) == []
    bench.send(tick(1), started(node, 1, 15))
    (replanned,) = bench.send(progressed(node, 1, 40, node_s=5.0))
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 120)


def test_what_the_plan_has_to_spare_makes_up_for_a_claim_that_is_a_little_high(bench):
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


def test_no_claim_fails_by_a_node_that_is_lost(bench):
    (admitted,) = bench.send(claim())
    node = nodes_by_slot(admitted)[0]
    _, replanned = bench.send(tick(0), started(node, 0, 0), offline(node))[-2:]
    assert isinstance(replanned, JobReplanned)
    # What the executor still had to say when it left changes nothing of that.
    assert bench.send(progressed(node, 0, 5, node_s=SLOT_S))[1:] == []


def test_no_claim_fails_by_a_checkpoint_that_is_lost(bench):
    (admitted,) = bench.send(claim())
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), progressed(nodes[0], 0, 50), tick(1))
    (replanned,) = bench.send(started(nodes[1], 1, 10))
    assert replanned.reason == "behind_plan"
    assert bench.send(progressed(nodes[1], 1, 60, node_s=SLOT_S)) == []


def test_no_claim_fails_where_the_start_of_a_run_is_not_known(bench):
    (admitted,) = bench.send(claim())
    (replanned,) = bench.send(tick(0), progressed(nodes_by_slot(admitted)[0], 0, 5, node_s=SLOT_S))[1:][-1:]
    assert isinstance(replanned, JobReplanned)


def test_a_slot_before_that_is_not_reported_yet_is_not_held_against_a_claim(bench):
    (admitted,) = bench.send(claim())
    nodes = nodes_by_slot(admitted)
    # Nothing came of slot 0: its node hung. Slot 1 trained all that it should.
    bench.send(tick(0), tick(1), started(nodes[1], 1, 0))
    (replanned,) = bench.send(progressed(nodes[1], 1, 50, node_s=SLOT_S))
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 150)


def trained(true_samples_per_s: float, declared: float, seed: int) -> int:
    """What a user gains by a claim: 100 units for an adapter, less what it pays, on random others' load."""
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
        for job in [job for job in bench.zone.book.jobs.values() if job.job_id != "mine"]:
            row = job.rows.get(slot)
            if row is not None:
                bench.send(
                    started(bench.zone.fleet.nodes[row], slot, job.samples_done, job.job_id),
                    progressed(
                        bench.zone.fleet.nodes[row],
                        slot,
                        job.samples_done + job.quotas[slot],
                        job_id=job.job_id,
                    ),
                )
    raise AssertionError("the job never ended")


@pytest.mark.parametrize("seed", range(2, 9))
def test_claiming_more_than_the_truth_is_never_better_than_the_truth(seed):
    honest = trained(1.0, 1.0, seed)
    assert honest >= 0
    for factor in (1.1, 1.5, 2.0, 4.0, 10.0):
        assert trained(1.0, factor, seed) <= honest, f"{factor} times the truth"


def test_data_of_more_samples_than_a_vendor_was_paid_for_end_the_job(bench):
    bench.send(vendor("fast", 3.0, 0.0))
    (admitted,) = bench.send(bid(needs_preprocessing=True))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0))
    refunded, cancelled = bench.send(started(node, 0, 0, dataset_samples=1_001))
    assert refunded.reason == "dataset_size_misstated"
    assert refunded.detail == "d.jsonl holds 1001 samples, its vendor was paid to prepare 1000"
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
