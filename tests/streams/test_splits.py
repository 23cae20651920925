"""Limit of the claim: a task that is really divided may cost less, since its parts need not take turns."""

from schemas.base import HOURS_PER_DAY
from schemas.cells import Tariff
from schemas.decisions import JobAdmitted
from tests.support.cells import UNIT, Bench, bid, configuration, zone

HOUR_S = 3_600.0
RISING = Tariff(name="t", micros_per_kwh=(UNIT, 3 * UNIT) * (HOURS_PER_DAY // 2))
"""A full node costs 1 in the first of two slots, and 3 in the second."""


def payments(*works: int) -> list[int]:
    """Return the payments of tasks that take half a node each, one after another, on an empty node with two
    slots."""
    # Bids raise prices by next to nothing here, so that what is paid is what is spent.
    policy = zone().policy.model_copy(update={"max_density_units": 1e-9})
    alone = zone(nodes=zone().nodes[:1], horizon_slots=2, policy=policy)
    bench = Bench()
    bench.send(configuration(epoch_s=0.0, slot_s=HOUR_S, tariffs=(RISING,), zones=(alone,)))
    outcomes = bench.send(
        *(
            bid(
                f"part{number}",
                deadline_s=2 * HOUR_S,
                work_samples=work,
                speed_samples_per_s={"fast": 5.0},
            )
            for number, work in enumerate(works)
        )
    )
    assert all(isinstance(outcome, JobAdmitted) for outcome in outcomes)
    return [outcome.payment_micros for outcome in outcomes]


def test_two_halves_share_the_cheap_slot():
    half = int(5.0 * HOUR_S)
    assert payments(2 * half) == [2 * UNIT]
    # Two users with half of the work each would pay as much, and no more is spent on them.
    assert payments(half, half) == [UNIT // 2, UNIT // 2 + 1]
