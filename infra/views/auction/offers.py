"""An offer in words: the node-slots considered, the price part by part, the plan."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from infra.views.text import MICROS_PER_UNIT, units
from schemas.auction.evidence import Offer, Plan, PriceBasis

_WORD = {
    "row": "by the zone's measure",
    "raised_to_row": "by the zone's measure, above what was declared",
    "declared_within_row": "as declared, within the zone's measure",
    "capped_by_row": "by the zone's measure, below what was declared",
    "declared": "as declared, which the user answers for",
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
        f"{speed.samples_per_s:g} samples/s on {speed.gpu_type} ({_WORD[speed.source]})"
        for speed in offer.speeds
    )
    if offer.memory is not None:
        yield f"memory: {offer.memory.gib:g} GiB ({_WORD[offer.memory.source]})"
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


_BARS = "▁▂▃▄▅▆▇█"


def describe_basis(basis: PriceBasis, expected_by_hour: tuple[float, ...] | None = None) -> str:
    """Return a text about the basis of prices: the remembered demand, the expected demand by hour of the day,
    and the resulting levels.

    Args:
        basis: Basis of the prices.
        expected_by_hour: Field of `ZonePriced`; shown as bars, the highest for the busiest hour.
    """
    demand = (
        f"the demand of {basis.remembered_slots:.3g} slots: lately {basis.asked_share:.0%} of all room was "
        "asked for; "
    )
    if basis.expected_slots is not None and basis.believed_part > 0:
        busiest = basis.expected_slots / basis.span_slots
        demand += (
            f"by the hour of the day the busiest of the next {basis.span_slots} slots ask for {busiest:.3g} "
            f"times the mean ({basis.believed_part:.0%} of the differences between hours are known to come "
            "back); "
        )
    if expected_by_hour is not None:
        heights = [part / max(expected_by_hour) * (len(_BARS) - 1) for part in expected_by_hour]
        demand += (
            f"from 0 to 24 o'clock UTC it expects {''.join(_BARS[round(height)] for height in heights)}; "
        )
    if basis.guard_micros_per_thousand_samples == 0:
        return f"{demand}room costs its least, which follows from energy (base and guard level 0)"
    # Three digits also of small amounts: the four decimals of `units` may hide a whole level.
    base = basis.base_micros_per_thousand_samples / MICROS_PER_UNIT
    guard = basis.guard_micros_per_thousand_samples / MICROS_PER_UNIT
    return (
        f"{demand}base level {base:.3g} units of money per thousand samples of room ahead, and in full slots "
        f"more, towards the guard level, {guard:.3g}"
    )


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
