"""Compile the kernels of deciding ahead of the first bid, which would otherwise wait for them."""

from collections.abc import Iterator

from schemas.base import HOURS_PER_DAY
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.jobs import Dataset, JobQuoteRequested, JobSubmitted, Task
from schemas.policies import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    Policy,
)
from schemas.quotes import VendorQuoted
from schemas.registry import Event
from streams.cell.cell import Cell, LedgerEvent

_CELL = "warm-up"
_VENDOR = "vendor"
_TIME = "1970-01-01T00:00:00Z"
_SLOT_S = 10.0
_HORIZON_SLOTS = 6
_SAMPLES_PER_SLOT = 10
_UNIT_MICROS = 1_000_000


def warm_up() -> None:
    """Fold a cell with a zone for every way to decide at once.

    The compiled code is kept on disk where that can be written, and then this takes under a second.
    """
    cell = Cell(_CELL)
    for offset, event in enumerate(_events()):
        cell.handle(LedgerEvent(offset, Envelope(f"{_CELL}-{offset}", f"/{_CELL}", _TIME, event)))


def _policies() -> dict[str, Policy]:
    declared = AuctionPolicy(
        money_unit_micros=_UNIT_MICROS,
        max_value_per_compute_micros=4 * _UNIT_MICROS,
        max_value_per_memory_micros=4 * _UNIT_MICROS,
    )
    return {
        "auction": declared.model_copy(update={"steepness": "learned"}),
        "published": declared.model_copy(
            update={"payment": "published", "order": "published", "search": "published"}
        ),
        "eft": EarliestFinishPolicy(kind="eft"),
        "ntm": NoMergingPolicy(kind="ntm"),
        "fixed-price": FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=0),
    }


def _events() -> Iterator[Event]:
    zones = tuple(_zone(id, policy) for id, policy in _policies().items())
    yield CellConfigured(
        cell=_CELL,
        epoch_s=0.0,
        slot_s=_SLOT_S,
        duplicate_window_events=1,
        tariffs=(Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY),),
        zones=zones,
        vendors=(_VENDOR,),
    )
    yield VendorQuoted(
        cell=_CELL,
        vendor=_VENDOR,
        fixed_price_micros=1,
        price_per_thousand_samples_micros=0,
        fixed_delay_s=_SLOT_S,
        delay_per_thousand_samples_s=0.0,
    )
    for zone in zones:
        yield _bid("bare", _task(zone.id, slots=2))
        yield _bid("prepared", _task(zone.id, slots=2, needs_preprocessing=True))
        # There is no room for it before its deadline, so the zone looks for the earliest that there would be.
        yield _bid("late", _task(zone.id, slots=_HORIZON_SLOTS, deadline_s=2 * _SLOT_S))
        yield JobQuoteRequested(cell=_CELL, quote_id=zone.id, user="nobody", task=_task(zone.id, slots=1))
    yield ClockTicked(cell=_CELL, time_s=_SLOT_S)


def _zone(id: str, policy: Policy) -> Zone:
    speed = _SAMPLES_PER_SLOT / _SLOT_S
    return Zone(
        id=id,
        base_model="none",
        base_model_memory_gib=1.0,
        horizon_slots=_HORIZON_SLOTS,
        gpu_types=(
            GpuType(name="fast", samples_per_s=4 * speed, memory_gib=8.0),
            GpuType(name="slow", samples_per_s=2 * speed, memory_gib=8.0),
        ),
        nodes=tuple(
            Node(id=f"{id}-{gpu_type}", gpu_type=gpu_type, tariff="none") for gpu_type in ("fast", "slow")
        ),
        policy=policy,
    )


def _bid(job: str, task: Task) -> JobSubmitted:
    return JobSubmitted(
        cell=_CELL,
        job_id=f"{task.zone}-{job}",
        user="nobody",
        bid_micros=100 * _UNIT_MICROS,
        task=task,
    )


def _task(
    zone: str,
    slots: int,
    deadline_s: float = _HORIZON_SLOTS * _SLOT_S,
    needs_preprocessing: bool = False,
) -> Task:
    return Task(
        zone=zone,
        work_samples=slots * _SAMPLES_PER_SLOT,
        deadline_s=deadline_s,
        dataset=Dataset(path="none.jsonl", samples=1),
        memory_gib=1.0,
        speed_samples_per_s=dict.fromkeys(("fast", "slow"), _SAMPLES_PER_SLOT / _SLOT_S),
        needs_preprocessing=needs_preprocessing,
    )
