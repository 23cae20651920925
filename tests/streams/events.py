"""Small builders of events for the tests of the streams."""

from schemas.auction.bids import BidTerms, VendorQuoted
from schemas.auction.settings import PdftspPolicy
from schemas.base import Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.fleet import RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraWorkload
from streams.cell.ledger_event import LedgerEvent

EPOCH_S = 1_700_000_000.0


def configuration(cell: str = "alpha") -> CellConfigured:
    """A cell with one zone of two nodes."""
    return CellConfigured(
        cell=cell,
        epoch_s=EPOCH_S,
        tariffs=(Tariff(name="flat", micros_per_kwh=(100,) * 24),),
        vendors=("labels",),
        zones=(
            Zone(
                id="z1",
                base_model="tiny",
                base_model_memory_gib=4.0,
                gpu_types=(GpuType(name="a100", samples_per_s=10.0, memory_gib=80.0, power_kw=0.4),),
                nodes=tuple(Node(id=f"{cell}-n{i}", gpu_type="a100", tariff="flat") for i in range(2)),
                policy=PdftspPolicy(
                    kind="pdftsp",
                    money_unit_micros=1_000,
                    max_value_per_compute_micros=10_000_000,
                    max_value_per_memory_micros=10_000_000,
                ),
            ),
        ),
    )


def bid(number: int, cell: str = "alpha", zone: str = "z1") -> JobSubmitted:
    """A bid that differs from the others in its id, its price and its size."""
    return JobSubmitted(
        cell=cell,
        job_id=f"job-{number}",
        user="user",
        zone=zone,
        terms=BidTerms(
            bid_micros=1_000 + 137 * (number % 91), deadline_s=EPOCH_S + 7_200 + 600 * (number % 11)
        ),
        workload=LoraWorkload(
            work_samples=500 + 100 * (number % 7),
            dataset=Dataset(path="data.jsonl", samples=500),
            memory_gib=8.0,
            speed_samples_per_s={"a100": 5.0},
        ),
    )


def stream(count: int, cell: str = "alpha") -> list[Event]:
    """A configuration, then `count` events of every kind that a cell sees often."""
    events: list[Event] = [configuration(cell), ClockTicked(cell=cell, time_s=EPOCH_S)]
    for number in range(count - 2):
        match number % 10:
            case 3:
                node = f"{cell}-n{number % 2}"
                events.append(
                    RunStarted(
                        cell=cell,
                        node=node,
                        run_id=f"0/job-{number - 1}",
                        job_id=f"job-{number - 1}",
                        samples_done=0,
                    )
                )
            case 5:
                events.append(ClockTicked(cell=cell, time_s=EPOCH_S + 60.0 * number))
            case 1:
                events.append(bid(number, cell, zone="nowhere"))
            case 9:
                events.append(
                    VendorQuoted(
                        cell=cell,
                        vendor=("labels", "stranger")[number % 20 > 10],
                        fixed_price_micros=number,
                        price_per_thousand_samples_micros=10,
                        fixed_delay_s=0.0,
                        delay_per_thousand_samples_s=1.0,
                    )
                )
            case _:
                events.append(bid(number, cell))
    return events


def envelope(event: Event, id: str, time: str = "2026-01-01T00:00:00Z") -> Envelope:
    """An event with attributes of its own."""
    return Envelope(id, "tests", time, event)


def ledger(events: list[Event]) -> list[LedgerEvent]:
    """The events at the offsets 0, 1, 2, …"""
    return [LedgerEvent(offset, envelope(event, f"e{offset}")) for offset, event in enumerate(events)]
