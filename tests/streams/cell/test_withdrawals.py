"""Withdrawals of jobs."""

from schemas.decisions import (
    JobAdmitted,
    JobWithdrawn,
)
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    bid,
    tick,
    withdraw,
)


def test_an_unstarted_job_is_withdrawn_at_the_price_of_its_resources(bench):
    bench.send(bid("j1"), bid("j2"), bid("j3"))
    job = bench.zone.book.jobs["j3"]
    (withdrawn,) = bench.send(withdraw("j3"))
    assert isinstance(withdrawn, JobWithdrawn)
    assert withdrawn.returned_micros == 2 * UNIT
    assert withdrawn.returned_micros + withdrawn.retained_micros == job.payment_micros


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
