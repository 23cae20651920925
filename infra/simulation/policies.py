"""A cell of a file under another policy than the file's: what `millrace simulate --policy` runs."""

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


def under_policy(
    cell: CellConfigured, name: PolicyName | None, price_per_thousand_samples_micros: int | None
) -> CellConfigured:
    """The cell with every zone under this policy; the auction keeps the bounds that the zone declares.

    Args:
        name: None leaves each zone under its own.
        price_per_thousand_samples_micros: for `fixed-price` alone, which needs it.

    Raises:
        CommandError: the price is missing or too many, or a zone declares no bounds for an auction.
    """
    if (price_per_thousand_samples_micros is None) == (name == "fixed-price"):
        raise CommandError(
            "--policy fixed-price needs --price-per-thousand-samples-micros, and no other policy takes it"
        )
    if name is None:
        return cell
    zones = tuple(
        zone.model_copy(update={"policy": _policy(zone, name, price_per_thousand_samples_micros)})
        for zone in cell.zones
    )
    return cell.model_copy(update={"zones": zones})


def _policy(zone: Zone, name: PolicyName, price_per_thousand_samples_micros: int | None) -> Policy:
    match name:
        case "auction" | "published":
            return _auction(zone, published=name == "published")
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


def _auction(zone: Zone, published: bool) -> AuctionPolicy:
    if not isinstance(zone.policy, AuctionPolicy):
        raise CommandError(
            f"zone {zone.id} of the file is under policy {zone.policy.kind}, which declares no bounds on "
            "bids as an auction needs: give it policy auction"
        )
    fields = zone.policy.model_dump(include={*AuctionPolicy.model_fields} - {"payment", "order", "search"})
    if published:
        fields |= {"payment": "published", "order": "published", "search": "published"}
    return AuctionPolicy(**fields)
