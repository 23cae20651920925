"""Withdrawals of jobs."""

import pytest

from schemas.auction.settings import AuctionPolicy
from schemas.decisions import JobAdmitted, JobWithdrawn
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    CheckedBench,
    bid,
    offline,
    tick,
    vendor,
    withdraw,
    zone,
)


def test_unstarted_job_is_withdrawn_at_resource_price(bench):
    bench.send(bid("j1"), bid("j2"), bid("j3"))
    job = bench.job("j3")
    (withdrawn,) = bench.send(withdraw("j3"))
    assert isinstance(withdrawn, JobWithdrawn)
    assert withdrawn.returned_micros == 2 * UNIT
    assert withdrawn.returned_micros + withdrawn.retained_micros == job["payment_micros"]


def test_withdrawn_bid_leaves_the_bound(bench):
    bench.send(bid("j1"))
    (admitted,) = bench.send(bid("j2", units=10_000.0))
    (withdrawn,) = bench.send(withdraw("j2"))
    fallen = (
        admitted.evidence.certificate.dual_bound_micros - withdrawn.evidence.certificate.dual_bound_micros
    )
    # All of its value but for what its cells cost.
    assert 9_900 * UNIT < fallen < 10_000 * UNIT


@pytest.mark.parametrize("withdrawn_in", [5, 6, 7])
def test_withdrawn_absurd_bid_counts_no_more(withdrawn_in):
    """It comes in the last slot of a period of the certificate, which is a horizon, and is withdrawn in that
    slot or in the next period, before its data are ready."""
    bench = CheckedBench.configured(zones=(zone(policy=AuctionPolicy()),))
    bench.send(vendor("slow", 0.1, delay_s=20.0), bid("j1"), *(tick(slot) for slot in range(5)))
    deadline = {"deadline_s": EPOCH_S + 100}
    for job in ("j2", "j3", "j4"):
        (first,) = bench.send(bid(job, work_samples=20, **deadline))
    before = first.evidence.certificate.dual_bound_micros
    (absurd,) = bench.send(bid("absurd", units=10**9, work_samples=5, needs_preprocessing=True, **deadline))
    assert isinstance(absurd, JobAdmitted)
    assert absurd.evidence.certificate.dual_bound_micros > 10**14
    bench.send(*(tick(slot) for slot in range(5, withdrawn_in)))
    withdrawn = bench.send(withdraw("absurd"))[-1]
    assert isinstance(withdrawn, JobWithdrawn)
    assert withdrawn.evidence.certificate.dual_bound_micros <= 2 * before


def test_a_withdrawal_is_refused(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    assert isinstance(admitted, JobAdmitted)
    (stranger,) = bench.send(withdraw(user="someone-else"))
    (unknown,) = bench.send(withdraw("nothing"))
    late = bench.send(tick(0), withdraw())[-1]
    assert [o.reason for o in (stranger, unknown, late)] == [
        "not_the_owner",
        "unknown_job",
        "job_already_started",
    ]


def test_withdrawal_returns_no_more_than_operation_paid():
    cheap, dear = zone().gpu_types[0], zone().gpu_types[1].model_copy(update={"power_kw": 5.0})
    bench = CheckedBench.configured(zones=(zone(gpu_types=(cheap, dear), nodes=zone().nodes[1:]),))
    bench.send(vendor("fast", 3.0, 0.0), bid(needs_preprocessing=True))
    job = bench.job("j")
    assert job["payment_micros"] == 5 * UNIT
    _, replanned = bench.send(offline("a2"))
    assert replanned.extra_operational_micros == 18 * UNIT
    (withdrawn,) = bench.send(withdraw())
    assert (withdrawn.returned_micros, withdrawn.retained_micros) == (2 * UNIT, 3 * UNIT)
