import pytest

from infra.workloads.arrivals import Arrival, generate
from infra.workloads.auction import SLACK, BidDemands, draw_quotes, draw_workload
from infra.workloads.timed import WorkloadError
from schemas.cells import CellConfigured, ThroughputRow
from schemas.lora import Dataset
from tests.support.cells import EPOCH_S, configuration, zone

ROWS = (
    ThroughputRow(
        gpu_type="fast", rank=8, batch_size=4, sequence_length=64, samples_per_s=5.0, memory_gib=2.0
    ),
    ThroughputRow(
        gpu_type="slow", rank=8, batch_size=4, sequence_length=64, samples_per_s=2.0, memory_gib=2.0
    ),
    ThroughputRow(
        gpu_type="fast", rank=32, batch_size=8, sequence_length=64, samples_per_s=4.0, memory_gib=3.0
    ),
)


@pytest.fixture
def cell() -> CellConfigured:
    return configuration(zones=(zone(throughput=ROWS, horizon_slots=24),))


@pytest.fixture
def arrivals() -> list[Arrival]:
    return generate(300, 600.0, seed=5)


def test_the_same_seed_draws_the_same_workload(cell, arrivals):
    assert draw_workload(cell, arrivals, EPOCH_S, 1) == draw_workload(cell, arrivals, EPOCH_S, 1)
    assert draw_workload(cell, arrivals, EPOCH_S, 1) != draw_workload(cell, arrivals, EPOCH_S, 2)


def test_arrival_makes_one_bid_of_known_shape(cell, arrivals):
    bids = draw_workload(cell, arrivals, EPOCH_S, 1).jobs
    assert [(timed.time_s, timed.event.user) for timed in bids] == [
        (EPOCH_S + arrival.offset_s, arrival.user) for arrival in arrivals
    ]
    assert len({timed.event.job_id for timed in bids}) == len(arrivals)
    shapes = {
        (t.event.workload.hyperparameters.rank, t.event.workload.hyperparameters.batch_size) for t in bids
    }
    assert shapes == {(8, 4), (32, 8)}
    for timed in bids:
        assert timed.event.workload.work_samples % timed.event.workload.hyperparameters.batch_size == 0


def test_work_fits_horizon_and_deadline_has_slack(cell, arrivals):
    speed = {8: 2.0, 32: 4.0}  # of the slowest row of each rank
    for timed in draw_workload(cell, arrivals, EPOCH_S, 1).jobs:
        task = timed.event.workload
        work_s = task.work_samples / speed[task.hyperparameters.rank]
        assert work_s <= 12 * cell.slot_s + 8
        assert timed.event.terms.deadline_s >= timed.time_s + SLACK[0] * work_s


def test_bids_keep_to_the_declared_bounds_on_value(cell, arrivals):
    policy = cell.zones[0].policy
    capacity = {8: 5.0, 32: 10.0}  # samples per second of the GPU type of the slowest row
    for timed in draw_workload(cell, arrivals, EPOCH_S, 1).jobs:
        task = timed.event.workload
        node_slots = task.work_samples / capacity[task.hyperparameters.rank] / cell.slot_s
        assert 0 < timed.event.terms.bid_micros <= policy.max_value_per_compute_micros * node_slots


def test_quarter_of_bids_needs_vendor(cell, arrivals):
    bids = draw_workload(cell, arrivals, EPOCH_S, 1).jobs
    assert 0.15 < sum(timed.event.workload.needs_preprocessing for timed in bids) / len(bids) < 0.35
    without = cell.model_copy(update={"vendors": ()})
    assert not any(
        t.event.workload.needs_preprocessing for t in draw_workload(without, arrivals, EPOCH_S, 1).jobs
    )


def test_the_dearest_vendor_is_the_fastest(cell):
    quotes = sorted(draw_quotes(cell, 3), key=lambda quote: quote.fixed_price_micros)
    delays = [quote.fixed_delay_s for quote in quotes]
    assert [quote.vendor for quote in quotes] == list(cell.vendors)
    assert delays == sorted(delays, reverse=True)


def test_the_given_datasets_are_used(cell, arrivals):
    datasets = (Dataset(path="a.jsonl", samples=10), Dataset(path="b.jsonl", samples=20))
    bids = draw_workload(cell, arrivals, EPOCH_S, 1, BidDemands(datasets=datasets)).jobs
    assert {timed.event.workload.dataset for timed in bids} == set(datasets)


def test_zones_get_bids_in_proportion_to_their_nodes(cell, arrivals):
    small = zone(id="small", throughput=ROWS)
    nodes = tuple(node.model_copy(update={"id": f"small-{node.id}"}) for node in small.nodes[:1])
    both = cell.model_copy(update={"zones": (*cell.zones, small.model_copy(update={"nodes": nodes}))})
    zones = [timed.event.zone for timed in draw_workload(both, arrivals, EPOCH_S, 1).jobs]
    assert 0.15 < zones.count("small") / len(zones) < 0.35


def test_a_zone_without_throughput_table_is_refused(arrivals):
    with pytest.raises(WorkloadError, match="zone z has no throughput table"):
        draw_workload(configuration(), arrivals, EPOCH_S, 1)
