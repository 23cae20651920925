"""Changes of a cell's configuration to another policy of the auction's family, or to other prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.errors import CommandError
from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    TitanPolicy,
)
from schemas.cells import CellConfigured, Zone
from schemas.kind import PolicySettings

PolicyName = Literal["auction", "published", "titan", "eft", "ntm", "fixed-price"]
"""`published` is the auction of the paper, with its payment, its order and its search."""

_BOUNDS = ("money_unit_micros", "max_value_per_compute_micros", "max_value_per_memory_micros")
"""Settings that the published auction requires."""
_DECLARED = {*_BOUNDS, "max_density_units"}
_FORECAST = {"steepness", "opening_prices"}
"""Settings that the published auction does not have."""


@dataclass(frozen=True)
class OtherPolicies:
    """Changes to make; by default none.

    An auction keeps the bounds that its zone declares, if any. It also keeps its forecast of prices, which
    the published one does not have.
    """

    policy: PolicyName | None = None
    """Policy of every zone; None leaves each under its own."""
    price_per_thousand_samples_micros: int | None = None
    """Price of `fixed-price`, which requires it; None for the others."""
    prices: Mapping[str, int] = field(default_factory=dict)
    """Fields of `AuctionPolicy` to set in every zone."""

    def of(self, cell: CellConfigured, source: str = "the cell") -> CellConfigured:
        """Return the changed configuration.

        Args:
            cell: Configuration to change.
            source: Source of the configuration, for messages.

        Raises:
            CommandError: the fixed price is missing or superfluous; or neither a zone nor `prices` has the
                bounds for the published auction; or the policy of a zone has no such prices; or a zone is
                invalid under its new policy.
        """
        if (self.price_per_thousand_samples_micros is None) == (self.policy == "fixed-price"):
            raise CommandError(
                "--policy fixed-price needs --price-per-thousand-samples-micros, and no other policy takes it"
            )
        policies = {zone.id: self._priced(zone, self._policy(zone, source)) for zone in cell.zones}
        zones = tuple(zone.model_copy(update={"policy": policies[zone.id]}) for zone in cell.zones)
        for zone in zones:
            for fault in zone.policy.faults(zone):
                raise CommandError(f"zone {zone.id}: {fault.message}")
        return cell.model_copy(update={"zones": zones})

    def _policy(self, zone: Zone, source: str) -> PolicySettings:
        match self.policy:
            case None:
                return zone.policy
            case "auction" | "published":
                return self._auction(zone, source)
            case "titan":
                return TitanPolicy(kind="titan")
            case "eft":
                return EarliestFinishPolicy(kind="eft")
            case "ntm":
                return NoMergingPolicy(kind="ntm")
            case "fixed-price":
                price = self.price_per_thousand_samples_micros
                assert price is not None
                return FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=price)

    def _auction(self, zone: Zone, source: str) -> AuctionPolicy:
        published = self.policy == "published"
        fields = dict[str, Any](self.prices)
        if isinstance(zone.policy, AuctionPolicy) and zone.policy.is_declared:
            fields = zone.policy.model_dump(include=_DECLARED if published else _DECLARED | _FORECAST)
        elif published and (missing := [name for name in _BOUNDS if name not in self.prices]):
            options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise CommandError(
                f"zone {zone.id} of {source} declares no bounds on bids, as the printed auction needs them: "
                f"give {options}"
            )
        if published:
            fields |= {"payment": "published", "order": "published", "search": "published"}
        return AuctionPolicy(**fields)

    def _priced(self, zone: Zone, policy: PolicySettings) -> PolicySettings:
        if not self.prices:
            return policy
        if not isinstance(policy, AuctionPolicy):
            raise CommandError(
                f"zone {zone.id} is under policy {policy.kind}, which has no {', '.join(self.prices)}"
            )
        return policy.model_copy(update=self.prices)
