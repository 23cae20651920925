"""A cell of a file under another policy than the file's: what `millrace simulate --policy` runs."""

from collections.abc import Mapping
from types import MappingProxyType

from infra.errors import CommandError
from infra.simulation.policy_name import PolicyName
from schemas.cells import CellConfigured, Zone
from schemas.policies import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    Policy,
    TitanPolicy,
)

_BOUNDS = ("money_unit_micros", "max_value_per_compute_micros", "max_value_per_memory_micros")
"""What an auction has no default for."""
_DECLARED = {*_BOUNDS, "max_density_units"}
_FORECAST = {"steepness", "opening_prices"}
"""What the printed auction knows nothing of."""
_NO_BOUNDS: Mapping[str, int] = MappingProxyType({})


def under_policy(
    cell: CellConfigured,
    name: PolicyName | None,
    price_per_thousand_samples_micros: int | None,
    bounds: Mapping[str, int] = _NO_BOUNDS,
    source: str = "the cell",
) -> CellConfigured:
    """The cell with every zone under this policy; the auction keeps the bounds that the zone declares,
    and what it foretells of prices, which the printed one does without.

    Args:
        name: None leaves each zone under its own.
        price_per_thousand_samples_micros: for `fixed-price` alone, which needs it.
        bounds: fields of `AuctionPolicy` for an auction in a zone that declares none.
        source: what the cell was read from, for messages.

    Raises:
        CommandError: the price is missing or too many, or a zone declares no bounds for an auction and some
            are missing in `bounds` too.
    """
    if (price_per_thousand_samples_micros is None) == (name == "fixed-price"):
        raise CommandError(
            "--policy fixed-price needs --price-per-thousand-samples-micros, and no other policy takes it"
        )
    if name is None:
        return cell

    def policy(zone: Zone) -> Policy:
        match name:
            case "auction" | "published":
                return _auction(zone, name == "published", bounds, source)
            case "titan":
                return TitanPolicy(kind="titan")
            case "eft":
                return EarliestFinishPolicy(kind="eft")
            case "ntm":
                return NoMergingPolicy(kind="ntm")
            case "fixed-price":
                assert price_per_thousand_samples_micros is not None
                return FixedPricePolicy(
                    kind="fixed_price", price_per_thousand_samples_micros=price_per_thousand_samples_micros
                )

    zones = tuple(zone.model_copy(update={"policy": policy(zone)}) for zone in cell.zones)
    return cell.model_copy(update={"zones": zones})


def _auction(zone: Zone, published: bool, bounds: Mapping[str, int], source: str) -> AuctionPolicy:
    if isinstance(zone.policy, AuctionPolicy):
        fields = zone.policy.model_dump(include=_DECLARED if published else _DECLARED | _FORECAST)
    elif missing := [name for name in _BOUNDS if name not in bounds]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise CommandError(
            f"zone {zone.id} of {source} is under policy {zone.policy.kind}, which declares no bounds on "
            f"bids as an auction needs: give {options}"
        )
    else:
        fields = dict(bounds)
    if published:
        fields |= {"payment": "published", "order": "published", "search": "published"}
    return AuctionPolicy(**fields)
