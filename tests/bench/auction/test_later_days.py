"""The welfare of a day that another one went before in the same ledger."""

from dataclasses import replace

import pytest

from bench.auction.runs.contenders import forecast
from bench.auction.runs.day import simulate, simulate_day
from bench.auction.runs.later_days import (
    AFTER,
    KINDS_BEFORE,
    SECOND_DAY,
    simulate_last_day,
    welfare_before,
)
from bench.auction.runs.trials import MEASURES
from bench.workloads.paper import draw_days
from infra.errors import CommandError
from infra.figures.auction.figures import AuctionFigures
from schemas.auction.settings import EarliestFinishPolicy
from tests.bench.auction.rows import TINY
from tests.support.examples import seeds

BUSY = replace(TINY, arrivals_per_slot=12.0)


def learning(declared):
    return declared.model_copy(update={"steepness": "learned"})


def eft(_declared):
    return EarliestFinishPolicy(kind="eft")


def welfare_of(day):
    return day.summary.part(AuctionFigures).realised_welfare_micros


@pytest.mark.long
@pytest.mark.parametrize("policy_of", [learning, eft])
@pytest.mark.parametrize("seed", seeds(3))
def test_the_first_day_is_worth_what_it_is_alone_and_the_second_the_rest(policy_of, seed):
    before, day = (BUSY, 1_000_000 + seed), (BUSY, seed)
    values = simulate_last_day([before], day, policy_of)
    two = draw_days([before], day)
    together = welfare_of(simulate(two.cell, two.inputs, policy_of))
    assert values["before_welfare_micros"] == welfare_of(simulate_day(*before, policy_of)) > 0
    assert values["welfare_micros"] == together - values["before_welfare_micros"]


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3))
def test_who_remembers_nothing_does_on_the_second_day_what_it_does_on_the_first(seed):
    values = simulate_last_day([(BUSY, 1_000_000 + seed)], (BUSY, seed), eft)
    assert values["welfare_micros"] == welfare_of(simulate_day(BUSY, seed, eft))


@pytest.mark.long
def test_who_remembers_the_first_day_does_otherwise_on_the_second_with_the_same_first():
    whole_day = replace(TINY, slots=144, arrivals_per_slot=2.0, work_scale=1.0)
    before = (whole_day, 1_000_000)

    def remembering(declared):
        """Steepness is learned only where node-slots open at a price."""
        return learning(declared).model_copy(update={"opening_prices": forecast(whole_day, 0)})

    values = simulate_last_day([before], (whole_day, 0), remembering)
    assert values["before_welfare_micros"] == welfare_of(simulate_day(*before, remembering))
    assert values["welfare_micros"] != welfare_of(simulate_day(whole_day, 0, remembering))


@pytest.mark.long
def test_a_job_that_is_not_over_when_the_second_day_begins_is_named():
    two = draw_days([(TINY, 7)], (TINY, 3))
    run = simulate(two.cell, two.inputs, eft).run
    with pytest.raises(CommandError, match=r"job task-00.* of an earlier day was not over when the last"):
        # As though the second day began with its second bid.
        welfare_before(run, two.earlier_job_ids | {"task-00000", "task-00001"})


@pytest.mark.long
@pytest.mark.parametrize("contender", [SECOND_DAY, *AFTER.values()])
def test_the_default_is_judged_on_the_same_bids_after_any_day(contender):
    values = MEASURES[contender](TINY, 0)
    first_day = simulate_day(TINY, 0, eft).summary.jobs
    before = simulate_day(KINDS_BEFORE[contender](TINY), 1_000_000, eft).summary.jobs
    assert values["bids"] == first_day + before
    assert values["welfare_micros"] > 0


@pytest.mark.long
def test_unlike_days_have_four_times_as_much_or_as_little_of_one_thing():
    load = [KINDS_BEFORE[name](TINY).arrivals_per_slot / TINY.arrivals_per_slot for name in AFTER.values()]
    value = [
        KINDS_BEFORE[name](TINY).density.median_units / TINY.density.median_units for name in AFTER.values()
    ]
    assert load == [4, 0.25, 1, 1]
    assert value == [1, 1, 4, 0.25]
    assert KINDS_BEFORE[SECOND_DAY](TINY) == TINY
