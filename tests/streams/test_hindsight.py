"""The offline optimum of a cell's events, against the cell's welfare and its certificate."""

import random
from collections.abc import Sequence

import pytest

from schemas.base import Event
from schemas.decisions import JobWithdrawn
from solvers.auction.offline.hindsight import instances_of
from solvers.auction.offline.instance import OfferedTask
from solvers.auction.offline.schedule_free import offline_optimum
from tests.support.cells import Bench, bid, configuration, tick, vendor, vendor_left, withdraw, zone
from tests.support.histories import recorded

LONG_S = 600.0
"""More than any of these takes."""


def tasks_of(*events: Event, withdrawn: Sequence[str] = ()) -> list[OfferedTask]:
    return list(instances_of([configuration(), *events], withdrawn)["z"].tasks)


def folded(events: list[Event]) -> tuple[Bench, list[str]]:
    """A cell that was fed all of them, and the jobs that were withdrawn."""
    bench = Bench()
    outcomes = bench.send(*events)
    return bench, [outcome.job_id for outcome in outcomes if isinstance(outcome, JobWithdrawn)]


def test_bid_uses_later_slots_until_deadline_or_horizon():
    (before, soon, late) = tasks_of(
        bid("before", deadline_s=1_040.0),
        tick(2.5),
        bid("soon", deadline_s=1_059.0),
        bid("late", deadline_s=1e9),
    )
    assert (before.first_slot, before.last_slot) == (0, 3)
    assert (soon.first_slot, soon.last_slot) == (3, 4)
    assert (late.first_slot, late.last_slot) == (3, 8)


def test_instance_spans_slots_of_bids_with_empty_nodes():
    made = instances_of([configuration(), tick(2), bid(deadline_s=1_060.0)])["z"]
    assert (made.first_slot, made.slots) == (3, 3)
    assert made.free_samples.tolist() == [[100.0, 100.0, 50.0]] * 3
    assert made.free_gib.tolist() == [[8.0, 8.0, 4.0]] * 3
    assert made.full_costs.tolist() == [[1e6, 5e5]] * 3


def test_vendors_offer_quotes_of_arrival_time():
    wanting = {"needs_preprocessing": True}
    tasks = tasks_of(
        vendor("slow", 1, 20.0),
        vendor("nobody", 0, 0.0),
        bid("one", **wanting),
        vendor("slow", 2, 10.0),
        vendor("fast", 3, 0.0),
        bid("two", **wanting),
        vendor_left("slow"),
        bid("three", **wanting),
        bid("none"),
    )
    offered = [[(o.vendor, o.price_micros, o.delay_slots) for o in task.options] for task in tasks]
    assert offered == [
        [("slow", 1_000_000, 2)],
        [("fast", 3_000_000, 0), ("slow", 2_000_000, 1)],
        [("fast", 3_000_000, 0)],
        [(None, 0, 0)],
    ]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(bid("j"), id="a job decided before"),
        pytest.param(bid("x", zone="elsewhere"), id="no such zone"),
        pytest.param(bid("x", memory_gib=9.0), id="larger than a node"),
        pytest.param(bid("x", speed_samples_per_s=None), id="no throughput known"),
        pytest.param(bid("x", needs_preprocessing=True), id="no vendor"),
        pytest.param(bid("x", deadline_s=1_009.0), id="its deadline is over"),
        pytest.param(configuration(zones=(zone(horizon_slots=1),)), id="a second configuration"),
    ],
)
def test_undecided_bids_are_not_in_instance(event: Event):
    assert [task.job_id for task in tasks_of(bid("j"), event, bid("k"))] == ["j", "k"]


def test_a_time_that_goes_back_changes_nothing():
    (task,) = tasks_of(tick(3), tick(1), bid(deadline_s=1e9))
    assert task.first_slot == 4


def test_bid_without_plans_uses_its_id():
    assert tasks_of(bid("j", memory_gib=9.0), bid("j")) == []


def test_nothing_is_asked_of_a_cell_without_configuration():
    assert instances_of([bid("early"), tick(0)]) == {}
    made = instances_of([bid("early"), configuration(), bid("j")])["z"]
    assert [task.job_id for task in made.tasks] == ["j"]


def test_withdrawn_job_is_left_out():
    events = [tick(0), bid("gone"), bid("lost", units=0.001), withdraw("gone"), withdraw("lost")]
    _, withdrawn = folded([configuration(), *events])
    assert withdrawn == ["gone"]
    assert [task.job_id for task in tasks_of(*events, withdrawn=withdrawn)] == ["lost"]


@pytest.mark.parametrize("seed", range(10))
def test_optimum_is_between_welfare_and_certificate(seed: int):
    # Whatever happens to nodes and runs: the optimum has no failures. But it plans with quotas, and runs
    # that train more than theirs may earn more.
    events = recorded(random.Random(seed), configuration(), bids=24, ahead_share=0.0)
    bench, withdrawn = folded(events)
    optimum = offline_optimum(instances_of(events, withdrawn)["z"], LONG_S, relative_gap=0.001)
    assert optimum.status == "optimal"
    assert bench.zone.auctioneer.welfare.realised_micros <= optimum.bound_micros
    assert optimum.welfare_micros <= bench.zone.auctioneer.prices.bound_micros
