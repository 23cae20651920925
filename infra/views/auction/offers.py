"""An offer in words: the node-slots considered, the price part by part, the plan."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from infra.text import units
from infra.views.auction.basis import describe_basis
from schemas.auction.evidence import CountedMemory, CountedSpeed, Offer, Plan

_WORD = {
    "row": "by the zone's measure",
    "raised_to_row": "by the zone's measure, above what was declared",
    "declared_within_row": "as declared, within the zone's measure",
    "capped_by_row": "by the zone's measure, below what was declared",
    "declared": "as declared, which the user answers for",
}
_PROFILE = {
    "measured": ", in runs of other users",
    "offline": ", by a published profile",
    "interpolated": ", between runs of other users' jobs of other micro-batches",
    "own_runs": ", in runs of the user, who answers for it",
}


def describe_offer(offer: Offer | None) -> Iterator[str]:
    """Yield a line for each part of an offer; none without an offer."""
    if offer is None:
        return
    room = offer.room
    yield (
        f"considered {room.node_slots} node-slots: {room.with_room} with room, "
        f"{room.on_closed_nodes} on closed nodes, {room.without_compute} without compute, "
        f"{room.without_memory} without memory; binding: {room.binding}"
    )
    yield "speed: " + ", ".join(
        f"{speed.samples_per_s:g} samples/s on {speed.gpu_type} ({_origin(speed)})" for speed in offer.speeds
    )
    if offer.memory is not None:
        yield f"memory: {offer.memory.gib:g} GiB ({_origin(offer.memory)})"
    if offer.price is not None:
        price = offer.price
        compute, memory = units(round(price.compute_micros)), units(round(price.memory_micros))
        yield (
            f"price: operation {units(price.operational_micros)} + compute {compute} + memory {memory} "
            f"+ vendor {units(price.vendor_micros)}"
        )
    if offer.basis is not None:
        yield f"priced by {describe_basis(offer.basis)}"
    if offer.plan is not None:
        yield f"plan: {describe_plan(offer.plan)}"
    if offer.plan_gap_micros:
        yield (
            f"the best plan found before the search had spent its steps: another may be cheaper by at "
            f"most {units(offer.plan_gap_micros)}"
        )


def _origin(counted: CountedSpeed | CountedMemory) -> str:
    origin = counted.speed_from if isinstance(counted, CountedSpeed) else counted.memory_from
    return _WORD[counted.source] + ("" if origin is None else _PROFILE[origin])


def describe_plan(plan: Plan) -> str:
    """Return a text with nodes and their slots."""
    runs = [(node, [slot for slot, _ in held]) for node, held in groupby(plan.node_slots, key=itemgetter(1))]
    places = "; ".join(f"{node} in {_ranges(slots)}" for node, slots in runs)
    vendor = "" if plan.vendor is None else f", data prepared by {plan.vendor}"
    return f"{plan.samples} samples: {places}{vendor}"


def _ranges(slots: list[int]) -> str:
    parts: list[list[int]] = []
    for slot in slots:
        if parts and slot == parts[-1][1] + 1:
            parts[-1][1] = slot
        else:
            parts.append([slot, slot])
    return ", ".join(f"slot {first}" if first == last else f"slots {first}-{last}" for first, last in parts)
