"""The basis of an auction's prices in words."""

from infra.text import MICROS_PER_UNIT
from schemas.auction.evidence import PriceBasis

_BARS = "▁▂▃▄▅▆▇█"


def describe_basis(basis: PriceBasis, expected_by_hour: tuple[float, ...] | None = None) -> str:
    """Return a text about the basis of prices: the remembered demand, the expected demand by hour of the day,
    and the resulting levels.

    Args:
        basis: Basis of the prices.
        expected_by_hour: Field of `ZonePriced`; shown as bars, the highest for the busiest hour.
    """
    demand = f"demand of {basis.remembered_slots:.3g} slots, lately {basis.asked_share:.0%} of all room; "
    if basis.expected_slots is not None and basis.believed_part > 0:
        busiest = basis.expected_slots / basis.span_slots
        demand += (
            f"the busiest of the next {basis.span_slots} slots have {busiest:.3g} times the mean "
            f"({basis.believed_part:.0%} of the differences between hours count); "
        )
    if expected_by_hour is not None:
        heights = [part / max(expected_by_hour) * (len(_BARS) - 1) for part in expected_by_hour]
        demand += f"expected by hour (0 to 24 UTC): {''.join(_BARS[round(height)] for height in heights)}; "
    if basis.guard_micros_per_thousand_samples == 0:
        return f"{demand}both levels are 0, so prices are at their least, set by energy costs"
    # Three digits also of small amounts: the four decimals of `units` may hide a whole level.
    base = basis.base_micros_per_thousand_samples / MICROS_PER_UNIT
    guard = basis.guard_micros_per_thousand_samples / MICROS_PER_UNIT
    return (
        f"{demand}base level {base:.3g}, guard level {guard:.3g} (in full slots), in units of money per "
        "thousand samples"
    )
