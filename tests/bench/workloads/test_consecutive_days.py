"""Two days of one ledger, drawn."""

from dataclasses import replace

from bench.workloads.paper import DAY_S, PaperSetting, draw, draw_days
from schemas.auction.bids import Task
from schemas.auction.quotes import VendorQuoted
from schemas.jobs import JobSubmitted

SMALL = PaperSetting(nodes=3, slots=12, arrivals_per_slot=4.0, work_scale=0.1)
WHOLE_DAY = replace(SMALL, slots=144, arrivals_per_slot=0.5)


def bids_of(inputs):
    return [(timed.time_s, timed.event) for timed in inputs if isinstance(timed.event, JobSubmitted)]


def quotes_of(inputs):
    return [(timed.time_s, timed.event) for timed in inputs if isinstance(timed.event, VendorQuoted)]


def test_first_day_is_unchanged_under_other_ids():
    two = draw_days([(SMALL, 7)], (SMALL, 3))
    _, alone = draw(SMALL, 7)
    first = [bid for bid in bids_of(two.inputs) if bid[1].job_id in two.earlier_job_ids]
    assert [(time, bid.job_id) for time, bid in first] == [
        (timed.time_s, f"before-{timed.event.job_id}") for timed in alone.jobs
    ]
    assert [bid.model_copy(update={"job_id": ""}) for _, bid in first] == [
        timed.event.model_copy(update={"job_id": ""}) for timed in alone.jobs
    ]
    assert quotes_of(two.inputs)[: len(alone.quotes)] == [(0.0, quote) for quote in alone.quotes]


def test_second_day_is_shifted_by_one_day():
    two = draw_days([(SMALL, 7)], (SMALL, 3))
    cell, alone = draw(SMALL, 3)
    second = [bid for bid in bids_of(two.inputs) if bid[1].job_id not in two.earlier_job_ids]
    assert two.cell == cell
    assert [time - DAY_S for time, _ in second] == [timed.time_s for timed in alone.jobs]
    for (_, bid), timed in zip(second, alone.jobs, strict=True):
        assert Task.of(bid).deadline_s - DAY_S == Task.of(timed.event).deadline_s
        assert bid.model_copy(update={"terms": timed.event.terms}) == timed.event
    assert quotes_of(two.inputs)[len(alone.quotes) :] == [(DAY_S, quote) for quote in alone.quotes]


def test_ids_of_both_days_are_distinct():
    two = draw_days([(SMALL, 3)], (SMALL, 3))
    ids = [bid.job_id for _, bid in bids_of(two.inputs)]
    assert len(set(ids)) == len(ids) == 2 * len(two.earlier_job_ids)


def test_nothing_of_first_day_is_due_later():
    for setting in (SMALL, WHOLE_DAY):
        two = draw_days([(setting, 7)], (setting, 3))
        for time_s, bid in bids_of(two.inputs):
            begin_s = 0.0 if bid.job_id in two.earlier_job_ids else DAY_S
            assert begin_s <= time_s < Task.of(bid).deadline_s <= begin_s + DAY_S


def test_other_first_day_changes_no_second_bid():
    busier = replace(SMALL, arrivals_per_slot=16.0, density=replace(SMALL.density, median_units=40.0))
    second_days = []
    for before in (SMALL, busier):
        two = draw_days([(before, 7)], (SMALL, 3))
        second_days.append([bid for bid in bids_of(two.inputs) if bid[1].job_id not in two.earlier_job_ids])
    assert second_days[0] == second_days[1]
