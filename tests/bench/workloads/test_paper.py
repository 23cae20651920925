"""Drawn workloads of section 5.1: the same for the same seed, and alike where settings are alike."""

import math
from collections import defaultdict
from dataclasses import replace
from statistics import fmean, median, pstdev, quantiles

import pytest

from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import DEADLINE_RULES, PaperSetting, arrivals_for_load, draw
from bench.workloads.tasks import UNIT_MICROS, mean_price_units
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.simulation.simulator import Simulation
from infra.workloads.auction import AuctionWorkload
from schemas.auction.bids import Task
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted
from schemas.lora import LoraWorkload
from schemas.lora_commands import SlotAssigned
from solvers.auction.market.window import vendor_options
from tests.support.examples import long

DAY = PaperSetting(arrivals_per_slot=80.0)
SMALL = PaperSetting(nodes=6, slots=36, arrivals_per_slot=4.0, work_scale=0.5)


def digest(drawn: tuple[CellConfigured, AuctionWorkload]) -> list[str]:
    cell, workload = drawn
    events = [cell, *workload.quotes, *(timed.event for timed in workload.jobs)]
    return [repr(timed.time_s) for timed in workload.jobs] + [event.model_dump_json() for event in events]


def workloads_of(workload: AuctionWorkload) -> list[LoraWorkload]:
    return [timed.event.workload for timed in workload.jobs]


def load_of(setting: PaperSetting, seed: int) -> float:
    """Samples demanded over samples that the whole fleet can do in the whole day."""
    cell, workload = draw(setting, seed)
    speeds = {gpu.name: gpu.samples_per_s for gpu in cell.zones[0].gpu_types}
    per_slot = sum(speeds[node.gpu_type] for node in cell.zones[0].nodes) * cell.slot_s
    return sum(task.work_samples for task in workloads_of(workload)) / (per_slot * setting.slots)


@pytest.fixture(scope="module")
def day() -> tuple[CellConfigured, AuctionWorkload]:
    return draw(DAY, seed=11)


def test_the_same_seed_draws_the_same_bytes():
    assert digest(draw(SMALL, 3)) == digest(draw(SMALL, 3))
    assert digest(draw(SMALL, 3)) != digest(draw(SMALL, 4))


@pytest.mark.parametrize(
    "other", [replace(SMALL, vendors=20), replace(SMALL, nodes=50)], ids=["more vendors", "more nodes"]
)
def test_a_larger_market_changes_no_bid(other):
    assert draw(other, 3)[1].jobs == draw(SMALL, 3)[1].jobs


def test_added_vendors_keep_first_quotes():
    assert draw(replace(SMALL, vendors=20), 3)[1].quotes[:5] == draw(SMALL, 3)[1].quotes


def test_other_node_type_changes_only_speeds():
    mixed, alone = draw(SMALL, 3)[1].jobs, draw(replace(SMALL, gpus="A40"), 3)[1].jobs

    def without_speeds(bid: JobSubmitted) -> JobSubmitted:
        return bid.model_copy(
            update={"workload": bid.workload.model_copy(update={"speed_samples_per_s": None})}
        )

    assert [without_speeds(timed.event) for timed in alone] == [
        without_speeds(timed.event) for timed in mixed
    ]
    for both, one in zip(mixed, alone, strict=True):
        speeds = both.event.workload.speed_samples_per_s
        assert one.event.workload.speed_samples_per_s == {"A40": speeds["A40"]}
        assert speeds["A100"] / speeds["A40"] == pytest.approx(312 / 149.7)


@pytest.mark.parametrize("rule", DEADLINE_RULES)
def test_other_deadline_rule_changes_deadlines_and_values(rule):
    here, there = draw(SMALL, 3)[1].jobs, draw(replace(SMALL, deadlines=rule), 3)[1].jobs
    for one, other in zip(here, there, strict=True):
        assert other.event.workload == one.event.workload
        assert other.time_s == one.time_s
        # Urgency is a factor of 1 to 1.5.
        assert 1 / 1.5 <= other.event.terms.bid_micros / one.event.terms.bid_micros <= 1.5


def test_other_arrival_rate_keeps_tasks():
    few, many = draw(SMALL, 3)[1].jobs, draw(replace(SMALL, arrivals_per_slot=8.0), 3)[1].jobs
    assert len(many) > 1.5 * len(few)
    for one, other in zip(few, many, strict=False):
        assert other.time_s <= one.time_s
        assert other.event.workload.work_samples == one.event.workload.work_samples


def test_tasks_follow_section_5_1(day):
    cell, workload = day
    for timed in workload.jobs:
        task, epochs = (
            timed.event.workload,
            timed.event.workload.work_samples / timed.event.workload.dataset.samples,
        )
        assert 5_000 <= task.dataset.samples <= 20_000
        assert epochs in {1, 2, 3, 4, 5}
        assert timed.time_s % cell.slot_s == 0
    tasks = workloads_of(workload)
    assert fmean(task.dataset.samples for task in tasks) == pytest.approx(12_500, rel=0.02)
    assert fmean(task.work_samples for task in tasks) == pytest.approx(37_500, rel=0.03)
    assert fmean(task.needs_preprocessing for task in tasks) == pytest.approx(0.5, abs=0.02)


def test_arrivals_are_poisson_from_slot_to_slot(day):
    slots = [int(timed.time_s / 600) for timed in day[1].jobs]
    counts = [slots.count(slot) for slot in range(DAY.slots)]
    assert fmean(counts) == pytest.approx(80, rel=0.03)
    # The variance of so many counts has a relative standard deviation of sqrt(2 / 143) = 12 %.
    assert pstdev(counts) ** 2 / fmean(counts) == pytest.approx(1.0, abs=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(("per_slot", "load"), [(30.0, 1.95), (50.0, 3.25), (80.0, 5.2)])
def test_rates_of_paper_load_nodes_as_declared(per_slot, load):
    assert load_of(PaperSetting(arrivals_per_slot=per_slot), seed=1) == pytest.approx(load, rel=0.06)


def test_values_have_the_declared_density_and_urgency(day):
    cell, workload = day
    per_slot = cell.zones[0].gpu_types[0].samples_per_s * cell.slot_s
    densities = []
    for timed in workload.jobs:
        task = timed.event.workload
        units = timed.event.terms.bid_micros / UNIT_MICROS
        vendor = mean_price_units(task.dataset.samples) if task.needs_preprocessing else 0.0
        densities.append((units - vendor) / (task.work_samples / per_slot))
    low, _, high = quantiles(densities, n=4)
    # Urgency lies between 1.1 and 1.42 under the proportional rule; its mean is 1 + 0.5 ln(5 / 1.2) / 3.8.
    assert median(densities) == pytest.approx(10 * 1.19, rel=0.05)
    assert high / low == pytest.approx(math.exp(2 * 0.6745 * 1.75), rel=0.1)


def test_vendor_costs_noticeable_part_of_value(day):
    cell, workload = day
    middle = median(timed.event.terms.bid_micros for timed in workload.jobs)
    assert 0.1 < mean_price_units(12_500) * UNIT_MICROS / middle < 0.3
    speeds = {gpu.name: gpu for gpu in cell.zones[0].gpu_types}
    mean_micros_per_kwh = fmean(cell.tariffs[0].micros_per_kwh)
    work = median(task.work_samples for task in workloads_of(workload))
    for gpu in speeds.values():
        cost = mean_micros_per_kwh * gpu.power_kw * work / gpu.samples_per_s / 3_600
        assert 0.05 < cost / middle < 0.15


def test_deadlines_stay_within_day(day):
    cell, workload = day
    quotes = {quote.vendor: quote for quote in workload.quotes}
    end_s = DAY.slots * cell.slot_s
    for timed in workload.jobs:
        task = timed.event.workload
        fastest = min(option.delay_slots for option in vendor_options(quotes, task, cell.slot_s))
        ready_s = timed.time_s + (1 + fastest) * cell.slot_s
        assert ready_s < timed.event.terms.deadline_s <= end_s or timed.event.terms.deadline_s == end_s


def test_declared_bounds_are_independent_of_draws():
    policies = {
        draw(replace(SMALL, arrivals_per_slot=a), s)[0].zones[0].policy for a in (2, 5) for s in (1, 2)
    }
    (policy,) = policies
    assert policy.money_unit_micros == policy.max_value_per_compute_micros == 10 * UNIT_MICROS
    assert policy.max_density_units == pytest.approx(math.exp(2.3263 * 1.75), rel=1e-4)


def test_small_workload_never_overfills_node():
    cell, workload = draw(SMALL, 5)
    run = Simulation(cell, workload.inputs(cell.epoch_s)).run()
    summary = summarise(Board.of(cell.cell, run.ledger, run.decisions))
    assert summary.jobs == len(workload.jobs)
    assert summary.admitted == len(summary.adapters) > 30
    assert {"price_not_below_bid", "deadline_too_soon"} <= summary.rejected.keys()
    tasks = {timed.event.job_id: Task.of(timed.event) for timed in workload.jobs}
    zone = cell.zones[0]
    types = {gpu.name: gpu for gpu in zone.gpu_types}
    type_of = {node.id: types[node.gpu_type] for node in zone.nodes}
    used: dict[tuple[str, int], list[Task]] = defaultdict(list)
    for outcome in (decision.outcome for decision in run.decisions):
        if isinstance(outcome, SlotAssigned):
            used[outcome.node, outcome.slot] += [tasks[order.job_id] for order in outcome.runs]
    assert max(map(len, used.values())) > 1, "tasks share nodes"
    for (node, slot), sharing in used.items():
        gpu = type_of[node]
        speed = sum(task.workload.speed_samples_per_s[gpu.name] for task in sharing)
        assert speed <= gpu.samples_per_s * (1 + 1e-9), (node, slot)
        assert (
            sum(task.workload.memory_gib for task in sharing) <= gpu.memory_gib - zone.base_model_memory_gib
        )
        assert all((slot + 1) * cell.slot_s <= task.deadline_s for task in sharing)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"nodes": 0}, "nodes is 0, at least 1"),
        ({"slots": 1}, "slots is 1, at least 2"),
        ({"vendors": 1}, "vendors is 1, at least 2"),
        ({"arrivals_per_slot": 0.0}, "arrivals_per_slot is 0.0, more than 0"),
        ({"arrivals_per_slot": float("nan")}, "arrivals_per_slot is nan, more than 0"),
        ({"work_scale": -1.0}, "work_scale is -1.0, more than 0"),
        ({"deadlines": "soon"}, "deadlines is 'soon', known are proportional, tight, loose, day"),
        ({"gpus": "T4"}, "gpus is 'T4', known are A100, A40, mixed"),
    ],
)
def test_undrawable_setting_names_field(fields, fault):
    with pytest.raises(ValueError, match=fault):
        PaperSetting(**fields)


def test_a_run_of_no_jobs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs is 0, at least 1"):
        TraceArrivals(tmp_path / "t.csv", 0)


@pytest.mark.parametrize(
    ("nodes", "gpus", "work_scale"), [(24, "mixed", 1.0), (3, "mixed", 0.25), (10, "A40", 1.0)]
)
@pytest.mark.parametrize("load", [0.5, *long(4.0)])
def test_days_of_load_match_capacity(load, nodes, gpus, work_scale):
    setting = PaperSetting(
        nodes=nodes,
        gpus=gpus,
        work_scale=work_scale,
        arrivals_per_slot=arrivals_for_load(load, nodes, gpus, work_scale),
    )
    assert fmean(load_of(setting, seed) for seed in range(10)) == pytest.approx(load, rel=0.1)
