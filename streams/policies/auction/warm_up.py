"""Events that compile every kernel of an auction zone, and the zones that wait for the compilation."""

from collections.abc import Iterator

from schemas.auction.bids import BidTerms, DeadlineTerms, VendorQuoted
from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    PdftspPolicy,
)
from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.kind import PolicySettings
from schemas.lora import Dataset, LoraWorkload

_CELL = "auction"
_VENDOR = "vendor"
_SLOT_S = 10.0
_HORIZON_SLOTS = 6
_SAMPLES_PER_SLOT = 10
_UNIT_MICROS = 1_000_000


LARGEST_INTERPRETED_NODE_SLOTS = 15_000
"""Size of a zone in which an interpreted bid takes up to 0.3 s, and several times as long on a busy
machine."""


def is_large(zone: Zone) -> bool:
    """Return whether interpreted bids would take too long."""
    return len(zone.nodes) * zone.horizon_slots > LARGEST_INTERPRETED_NODE_SLOTS


def _policies() -> dict[str, PolicySettings]:
    declared = PdftspPolicy(
        kind="pdftsp",
        money_unit_micros=_UNIT_MICROS,
        max_value_per_compute_micros=4 * _UNIT_MICROS,
        max_value_per_memory_micros=4 * _UNIT_MICROS,
    )
    return {
        "auction": AuctionPolicy(),
        "pdftsp": declared.model_copy(update={"steepness": "learned"}),
        "published": declared.model_copy(
            update={"payment": "published", "order": "published", "search": "published"}
        ),
        "eft": EarliestFinishPolicy(kind="eft"),
        "ntm": NoMergingPolicy(kind="ntm"),
        "fixed-price": FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=0),
    }


def warm_up_events() -> Iterator[Event]:
    """Yield the events of a cell with a zone for every policy that decides at once.

    If the compiled code can be cached on disk, later calls take under a second.
    """
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
        yield _bid(zone.id, "bare", _workload(slots=2))
        yield _bid(zone.id, "prepared", _workload(slots=2, needs_preprocessing=True))
        # There is no room for it before its deadline, so the zone searches the earliest deadline with room.
        yield _bid(zone.id, "late", _workload(slots=_HORIZON_SLOTS), deadline_s=2 * _SLOT_S)
        yield JobQuoteRequested(
            cell=_CELL,
            quote_id=zone.id,
            user="user",
            zone=zone.id,
            workload=_workload(slots=1),
            terms=DeadlineTerms(deadline_s=_HORIZON_SLOTS * _SLOT_S),
        )
    yield ClockTicked(cell=_CELL, time_s=_SLOT_S)


def _zone(id: str, policy: PolicySettings) -> Zone:
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


def _bid(
    zone: str, job: str, workload: LoraWorkload, deadline_s: float = _HORIZON_SLOTS * _SLOT_S
) -> JobSubmitted:
    return JobSubmitted(
        cell=_CELL,
        job_id=f"{zone}-{job}",
        user="user",
        zone=zone,
        workload=workload,
        terms=BidTerms(bid_micros=100 * _UNIT_MICROS, deadline_s=deadline_s),
    )


def _workload(slots: int, needs_preprocessing: bool = False) -> LoraWorkload:
    return LoraWorkload(
        work_samples=slots * _SAMPLES_PER_SLOT,
        dataset=Dataset(path="none.jsonl", samples=1),
        memory_gib=1.0,
        speed_samples_per_s=dict.fromkeys(("fast", "slow"), _SAMPLES_PER_SLOT / _SLOT_S),
        needs_preprocessing=needs_preprocessing,
    )
