"""Certificates: admitted plans against their bound, and separately their results."""

import pytest

from schemas.auction.batches import SolvedPlan
from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import TitanPolicy
from schemas.cells import GpuType, Tariff
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded
from streams.cell.state_machine import Cell
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    CheckedBench,
    bid,
    failed,
    finished,
    nodes_by_slot,
    offline,
    progressed,
    solved,
    started,
    tick,
    vendor,
    withdraw,
    zone,
)


def bench_of_fast_nodes(node_slot_units: float, **changes) -> CheckedBench:
    """Nodes a1 and a2 alone, whose every slot costs so much to run when they are full."""
    fast = GpuType(name="fast", samples_per_s=10.0, memory_gib=10.0, power_kw=node_slot_units)
    changed = {"gpu_types": (fast,), "nodes": zone().nodes[:2], "horizon_slots": 12, **changes}
    return CheckedBench.configured(zones=(zone(**changed),))


def test_batches_beyond_quota_prove_nothing_about_plans():
    bench = bench_of_fast_nodes(10 / 0.09)
    task = {"work_samples": 90, "speed_samples_per_s": {"fast": 0.9}, "deadline_s": EPOCH_S + 120}
    (admitted,) = bench.send(bid(units=101.0, **task))
    assert len(admitted.evidence.offer.plan.node_slots) == 10
    bench.send(tick(0))
    for slot, done in enumerate((16, 32, 48, 64, 80)):
        node = nodes_by_slot(admitted)[slot]
        bench.send(started(node, slot, max(done - 16, 0)), progressed(node, slot, done), tick(slot + 1))
    (completed,) = bench.send(finished(nodes_by_slot(admitted)[5], 5, 90))
    assert isinstance(completed, JobCompleted)
    certificate = completed.evidence.certificate
    assert certificate.planned_welfare_micros == pytest.approx(1 * UNIT, abs=10)
    assert certificate.realised_welfare_micros == pytest.approx(41 * UNIT, abs=10)
    assert certificate.difference.finished_early_micros == pytest.approx(40 * UNIT, abs=10)
    assert certificate.dual_bound_micros < certificate.realised_welfare_micros, "it bounds plans alone"
    assert 1.0 <= certificate.proven_ratio == admitted.evidence.certificate.proven_ratio


def test_cheaper_replan_proves_nothing_about_first_plan():
    bench = bench_of_fast_nodes(20.0)
    (admitted,) = bench.send(bid(units=20.2, work_samples=51, speed_samples_per_s={"fast": 5.0}))
    (first, node), (second, other) = admitted.evidence.offer.plan.node_slots
    assert (first, second, node) == (0, 1, other)
    _, replanned = bench.send(tick(0), started(node, 0, 0), progressed(node, 0, 50), offline(node))[-2:]
    assert isinstance(replanned, JobReplanned)
    certificate = replanned.evidence.certificate
    assert certificate.planned_welfare_micros == pytest.approx(0.2 * UNIT, abs=10)
    assert certificate.realised_welfare_micros == pytest.approx(10 * UNIT, abs=10)
    assert certificate.difference.replanned_micros == -replanned.extra_operational_micros
    assert certificate.proven_ratio >= 1


@pytest.mark.parametrize(
    "hopeless",
    [
        bid(memory_gib=9.0),
        bid(needs_preprocessing=True),
        bid(speed_samples_per_s={"tpu": 1.0}),
        bid(speed_samples_per_s=None),
        bid(deadline_s=EPOCH_S + 5),
    ],
    ids=["larger than a node", "no vendor", "unknown type", "no speed", "too soon"],
)
def test_impossible_bid_adds_nothing_to_bound(bench, hopeless):
    (rejected,) = bench.send(hopeless)
    assert rejected.evidence.certificate.dual_bound_micros == 0


def test_refund_is_separated_from_plan(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    node = nodes_by_slot(admitted)[0]
    refunded, _ = bench.send(tick(0), started(node, 0, 0), progressed(node, 0, 20))[-2:]
    assert isinstance(refunded, JobRefunded)
    before, after = admitted.evidence.certificate, refunded.evidence.certificate
    assert (after.planned_welfare_micros, after.dual_bound_micros) == (
        before.planned_welfare_micros,
        before.dual_bound_micros,
    )
    # The first of four slots is spent.
    assert after.realised_welfare_micros == -UNIT // 2
    assert after.difference.refunded_micros == -50 * UNIT + 3 * UNIT // 2


def test_permanent_failure_is_separated_from_provider_faults(bench):
    bench.send(bid(), tick(0))
    (refunded,) = bench.send(failed("a1", 0, 0, permanent=True))
    difference = refunded.evidence.certificate.difference
    assert difference.failed_micros == -50 * UNIT + 3 * UNIT // 2
    assert difference.refunded_micros == 0


def test_withdrawal_restores_plans_and_bound_except_prices(bench):
    bench.send(vendor("fast", 3.0, 0.0))
    (withdrawn,) = bench.send(bid(needs_preprocessing=True), withdraw())[1:]
    certificate = withdrawn.evidence.certificate
    assert certificate.planned_welfare_micros == 0
    assert certificate.proven_ratio is None
    assert certificate.realised_welfare_micros == certificate.difference.withdrawn_micros == -3 * UNIT


def test_moved_plan_of_withdrawn_job_is_not_counted(bench):
    dear = zone().gpu_types[1].model_copy(update={"power_kw": 5.0})
    types = (zone().gpu_types[0], dear)
    bench = CheckedBench.configured(zones=(zone(gpu_types=types, nodes=zone().nodes[1:]),))
    _, _, replanned = bench.send(bid(), offline("a2"))
    assert replanned.evidence.certificate.difference.replanned_micros == -18 * UNIT
    (withdrawn,) = bench.send(withdraw())
    assert withdrawn.evidence.certificate.realised_welfare_micros == 0


def test_job_releasing_unneeded_slots_states_it():
    bench = bench_of_fast_nodes(1.0)
    # A task that fills a1 in slot 2, so that the job's third slot is on a2.
    whole = {"work_samples": 100, "speed_samples_per_s": {"fast": 10.0}, "needs_preprocessing": True}
    bench.send(vendor("fast", 0.0, 20.0), bid("other", deadline_s=EPOCH_S + 30, **whole))
    task = {"work_samples": 30, "speed_samples_per_s": {"fast": 1.0}, "deadline_s": EPOCH_S + 30}
    (admitted,) = bench.send(bid(**task))
    assert nodes_by_slot(admitted) == {0: "a1", 1: "a1", 2: "a2"}
    # Batches of 16: after the first slot so much is done that the second, which still runs, will do.
    bench.send(tick(0), started("a1", 0, 0), progressed("a1", 0, 20), tick(1), started("a1", 1, 20))
    down, replanned = bench.send(offline("a2"))
    assert isinstance(replanned, JobReplanned)
    assert (replanned.reason, replanned.first_slot, replanned.remaining_samples) == ("node_lost", 2, 0)
    assert replanned.plan.node_slots == ()
    assert replanned.extra_operational_micros == -UNIT // 10
    assert replanned.evidence.certificate.difference.replanned_micros == UNIT // 10
    assert down.status == "down"


def titan_bench() -> CheckedBench:
    """Slots of half an hour, six of them ahead, and power that is cheap from the fourth hour on."""
    hourly = (360 * UNIT // 180,) * 3 + (UNIT // 1_000,) * 21
    bench = CheckedBench.configured(
        epoch_s=0.0,
        slot_s=1_800.0,
        node_timeout_s=10_000.0,
        tariffs=(Tariff(name="t", micros_per_kwh=hourly),),
        zones=(zone(policy=TitanPolicy(kind="titan")),),
    )
    bench.send(tick(0).model_copy(update={"time_s": 0.0}))
    return bench


def test_waiting_bid_uses_no_slot_outside_bound():
    # As the bid comes, slots 1 to 6 are ahead, as it is decided 2 to 7: in slot 7 power may cost less.
    bench = titan_bench()
    task = {"work_samples": 900, "speed_samples_per_s": {"fast": 0.5}, "deadline_s": 50 * 1_800.0}
    bench.send(bid(units=10.0, **task))
    bench.cell = Cell.restore(bench.cell.snapshot())
    (requested,) = bench.send(tick(0).model_copy(update={"time_s": 1_000.0}))
    (offered,) = requested.problem.bids
    assert offered.last_slot == 6
    bench.send(tick(0).model_copy(update={"time_s": 1_800.0}))
    (rejected,) = bench.send(solved(requested, SolvedPlan(job_id="j", node_slots=((7, "a1"),))))
    assert rejected.reason == "plan_not_feasible"


def test_titan_plans_stay_within_counted_value():
    bench = titan_bench()
    task = {"work_samples": 900, "speed_samples_per_s": {"fast": 0.5}, "deadline_s": 50 * 1_800.0}
    bench.send(bid(units=10.0, **task))
    (requested,) = bench.send(tick(0).model_copy(update={"time_s": 1_000.0}))
    admitted = bench.send(solved(requested, SolvedPlan(job_id="j", node_slots=((6, "a1"),))))[0]
    assert isinstance(admitted, JobAdmitted)
    assert admitted.evidence.certificate.proven_ratio == 1.0
