"""A cell at the bounds of its schemas: the largest and the smallest of every field, in every combination."""

from collections.abc import Callable
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.auction.bids import BidTerms, DeadlineTerms, VendorLeft, VendorQuoted
from schemas.auction.deliveries import Deliveries, PreprocessingDelivered, PreprocessingFailed
from schemas.auction.settings import AuctionPolicy, PdftspPolicy
from schemas.base import MAX_MICROS, MAX_TIME_S, Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, ThroughputRow, Zone
from schemas.clock import ClockTicked
from schemas.fleet import (
    NodeOffline,
    NodeOnline,
    NodeSeen,
    NodeSilent,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from streams.cell.state_machine import Cell
from tests.streams.test_cell_fuzz import feed
from tests.support.cells import delivered, failed_order
from tests.support.examples import examples

LEAST = 5e-324
MOST_SAMPLES = 10**12
SPEEDS = (1e-9, 0.02, 5.0, 10.0, 1e9)
GIBS = (2**-30, 1 / 1024, 1.0, 8.0, 1e6)
LONGEST_DELAY_S = 31_536_000.0
NODES = ("a1", "a2", "b1")
JOBS = ("j0", "j1", "j2", "j3")
REPORTS: tuple[type[Event], ...] = (RunStarted, RunProgressed, RunFinished, RunFailed)
OTHERS: tuple[type[Event], ...] = (
    *(JobQuoteRequested, JobWithdrawalRequested, VendorQuoted, VendorLeft),
    *(PreprocessingDelivered, PreprocessingFailed),
    *(NodeOnline, NodeSeen, NodeSilent, NodeOffline),
)
KINDS = (JobSubmitted,) * 8 + (ClockTicked,) * 4 + REPORTS + OTHERS
"""Kinds of events, with enough bids and ticks for runs to exist."""


@st.composite
def configurations(draw: st.DrawFn) -> CellConfigured:
    """Two classes of nodes. Most fields are at their usual value, which comes first, so that jobs get to run;
    what the rules between fields refuse is not drawn."""

    def one(usual: Any, *bounds: Any) -> Any:
        return draw(st.sampled_from((usual,) * (2 * len(bounds)) + bounds))

    try:
        zone = Zone(
            id="z",
            base_model="tiny",
            base_model_memory_gib=one(2.0, 2**-30, 1e6 - 1),
            horizon_slots=one(6, 1, 50),
            gpu_types=tuple(
                GpuType(
                    name=name,
                    samples_per_s=one(10.0, 0.02, 100.0, 1e9),
                    memory_gib=one(10.0, 1e6),
                    power_kw=one(1.0, 0.0, LEAST, 1_000.0),
                )
                for name in ("fast", "slow")
            ),
            nodes=tuple(
                Node(id=id, gpu_type=gpu_type, tariff="t")
                for id, gpu_type in zip(NODES, ("fast", "fast", "slow"), strict=True)
            ),
            throughput=tuple(
                ThroughputRow(
                    gpu_type=name,
                    rank=1_024,
                    batch_size=8,
                    sequence_length=1_048_576,
                    samples_per_s=one(5.0, *SPEEDS),
                    memory_gib=one(1.0, *GIBS),
                )
                for name in ("fast", "slow")
            ),
            policy=AuctionPolicy(deliveries=one(None, Deliveries(), Deliveries(least_part=1)))
            if draw(st.booleans())
            else PdftspPolicy(
                kind="pdftsp",
                deliveries=one(None, Deliveries()),
                payment=one("critical", "published"),
                order=one("room_first", "published"),
                money_unit_micros=one(10**6, 1, MAX_MICROS),
                max_value_per_compute_micros=one(10**6, 1, MAX_MICROS),
                max_value_per_memory_micros=one(10**6, 1, MAX_MICROS),
            ),
        )
        return CellConfigured(
            cell="c",
            epoch_s=one(1_000.0, 0.0, MAX_TIME_S),
            slot_s=one(10.0, 0.01, 600.0, 86_400.0),
            node_timeout_s=one(15.0, 1e-3, 86_400.0),
            duplicate_window_events=one(1_000, 1),
            tariffs=(
                Tariff(
                    name="t", micros_per_kwh=(one(10**6, 0, 1, MAX_MICROS),) * 24, utc_offset_h=one(-12, 14)
                ),
            ),
            zones=(zone,),
            vendors=("v", "w"),
        )
    except ValidationError:
        assume(False)
        raise


def times(cell: CellConfigured) -> st.SearchStrategy[float]:
    """Unix seconds around the first slots, at the beginning and at the end."""
    near = [cell.epoch_s + cell.slot_s * slot for slot in (-1, 0, 0.5, 1, 2, 3, 4)]
    return st.sampled_from([0.0, *(time_s for time_s in near if 0 <= time_s <= MAX_TIME_S), MAX_TIME_S])


def workloads(cell: CellConfigured) -> st.SearchStrategy[LoraWorkload]:
    """Half of them workloads that fill a node, half of them anything."""
    capacity = {gpu.name: gpu.samples_per_s for gpu in cell.zones[0].gpu_types}
    room_gib = min(gpu.memory_gib for gpu in cell.zones[0].gpu_types) - cell.zones[0].base_model_memory_gib
    speeds = st.sampled_from(SPEEDS)
    fitting = st.builds(
        LoraWorkload,
        work_samples=st.sampled_from((1, 100, 250, MOST_SAMPLES)),
        dataset=st.just(Dataset(path="d.jsonl", samples=1)),
        memory_gib=st.sampled_from((2**-30, room_gib)),
        speed_samples_per_s=st.sampled_from(
            (capacity, {name: 0.7 * speed for name, speed in capacity.items()})
        ),
    )
    return fitting | st.builds(
        LoraWorkload,
        work_samples=st.sampled_from((1, 7, 100, 600, MOST_SAMPLES - 1, MOST_SAMPLES)),
        dataset=st.builds(Dataset, path=st.just("d.jsonl"), samples=st.sampled_from((1, MOST_SAMPLES))),
        hyperparameters=st.just(LoraHyperparameters()),
        memory_gib=st.none() | st.sampled_from(GIBS),
        speed_samples_per_s=st.none()
        | st.fixed_dictionaries({"fast": speeds}, optional={"slow": speeds})
        | st.just({}),
        needs_preprocessing=st.booleans(),
    )


def events(configuration: CellConfigured, cell: Cell) -> dict[type[Event], st.SearchStrategy[Event]]:
    """Draw every event at its bounds. Reports are about existing runs, if there are any."""
    named = {"cell": st.just("c")}
    micros = st.sampled_from((0, 1, 10**6, 10**12, MAX_MICROS))
    job = named | {"job_id": st.sampled_from(JOBS)}
    asked = {"zone": st.just("z"), "workload": workloads(configuration)}
    deadlines = times(configuration) | st.just(MAX_TIME_S)
    node = named | {"node": st.sampled_from(NODES)}
    sign = node | {"base_model": st.sampled_from(("tiny", "other")), "runners": st.just(("lora",))}
    runs = st.sampled_from(running(cell) or [(JOBS[0], NODES[0], 10**12)])
    samples_done = st.sampled_from((0, 1, 50, MOST_SAMPLES, 2 * MOST_SAMPLES))
    loss = {"loss": st.sampled_from((0.0, 1e9))}
    node_s = st.sampled_from((0.0, LEAST, 10.0, 1e9))
    delay_s = st.sampled_from((0.0, LEAST, 10.0, LONGEST_DELAY_S))
    vendor = named | {"vendor": st.sampled_from(("v", "w"))}
    orders = st.sampled_from(ordered(cell) or [("v", "0/j0", JOBS[0])])

    def report(model: type[Event], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
        def build(run: tuple[str, str, int], samples_done: int, rest: dict[str, Any]) -> Event:
            job_id, node, slot = run
            run_id = f"{slot}/{job_id}"
            return model(cell="c", job_id=job_id, node=node, run_id=run_id, samples_done=samples_done, **rest)

        return st.builds(build, runs, samples_done, st.fixed_dictionaries(fields))

    def of_order(make: Callable[..., Event], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
        return st.builds(lambda order, rest: make(*order, **rest), orders, st.fixed_dictionaries(fields))

    return {
        JobSubmitted: st.builds(
            JobSubmitted,
            **job,
            user=st.just("u"),
            **asked,
            terms=st.builds(BidTerms, bid_micros=micros | st.just(MAX_MICROS), deadline_s=deadlines),
        ),
        JobQuoteRequested: st.builds(
            JobQuoteRequested,
            **named,
            quote_id=st.just("q"),
            user=st.just("u"),
            **asked,
            terms=st.builds(DeadlineTerms, deadline_s=deadlines),
        ),
        JobWithdrawalRequested: st.builds(JobWithdrawalRequested, **job, user=st.just("u")),
        VendorQuoted: st.builds(
            VendorQuoted,
            **vendor,
            fixed_price_micros=micros,
            price_per_thousand_samples_micros=micros,
            fixed_delay_s=delay_s,
            delay_per_thousand_samples_s=delay_s,
        ),
        VendorLeft: st.builds(VendorLeft, **vendor),
        PreprocessingDelivered: of_order(
            delivered,
            samples=st.sampled_from((1, 500, MOST_SAMPLES)),
            size_bytes=st.sampled_from((1, 2**53)),
        ),
        PreprocessingFailed: of_order(
            failed_order,
            reason=st.sampled_from(("data_missing", "more_data_than_ordered", "vendor_unable")),
            detail=st.sampled_from(("", "é" * 2_000)),
        ),
        ClockTicked: st.builds(ClockTicked, **named, time_s=times(configuration)),
        NodeOnline: st.builds(NodeOnline, **sign),
        NodeSeen: st.builds(NodeSeen, **sign),
        NodeSilent: st.builds(NodeSilent, **node, silent_s=st.sampled_from((0.0, 1e9))),
        NodeOffline: st.builds(NodeOffline, **node),
        RunStarted: report(RunStarted, dataset_samples=st.sampled_from((None, 1, MOST_SAMPLES))),
        RunProgressed: report(RunProgressed, **loss, node_s=node_s, complete=st.booleans()),
        RunFinished: report(
            RunFinished, **loss, adapter_path=st.just("p" * 512), adapter_digest=st.just("0" * 64)
        ),
        RunFailed: report(RunFailed, error=st.sampled_from(("", "é" * 2_000)), permanent=st.booleans()),
    }


def ordered(cell: Cell) -> list[tuple[str, str, str]]:
    """Vendor, id and job of every order of a live job."""
    jobs = cell.zones["z"].describe()["jobs"]
    orders = ((job["order"], job_id) for job_id, job in jobs.items() if "order" in job)
    return [(order["vendor"], order["order_id"], job_id) for order, job_id in orders]


def running(cell: Cell) -> list[tuple[str, str, int]]:
    """Job, node and slot of every run that may be reported."""
    zone = cell.zones["z"].describe()
    return [
        (job_id, part["node"], part["slot"])
        for job_id, job in zone["jobs"].items()
        for part in job.get("plan", ())
        if part["slot"] <= zone["slot"]
    ]


@settings(max_examples=examples(120), deadline=None, derandomize=True, database=None)
@given(st.data())
def test_every_event_at_its_bounds_is_answered(data: st.DataObject) -> None:
    configuration = data.draw(configurations())
    cell = Cell("c")
    feed(cell, configuration)
    for kind in data.draw(st.lists(st.sampled_from(KINDS), min_size=6, max_size=14)):
        feed(cell, data.draw(events(configuration, cell)[kind]))
    assert Cell.restore(cell.snapshot()).snapshot() == cell.snapshot()
