"""Changes of a cell's configuration to another policy of the auction's family, or to other prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.errors import CommandError
from schemas.auction.settings import (
    BOUNDS,
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.cells import CellConfigured, Zone
from schemas.kind import PolicySettings

PolicyName = Literal["auction", "pdftsp", "published", "titan", "eft", "ntm", "fixed-price"]
"""`published` is pdFTSP with the payment, the order and the search of the paper."""

_DECLARED = {*BOUNDS, "max_density_units"}
"""Settings that the auction as printed has too."""


@dataclass(frozen=True)
class OtherPolicies:
    """Changes to make; by default none.

    pdFTSP keeps the settings of a zone that is under it already; the printed form keeps only the bounds.
    """

    policy: PolicyName | None = None
    """Policy of every zone; None leaves each under its own."""
    price_per_thousand_samples_micros: int | None = None
    """Price of `fixed-price`, which requires it; None for the others."""
    prices: Mapping[str, int] = field(default_factory=dict)
    """Fields of `PdftspPolicy` to set in every zone."""

    def of(self, cell: CellConfigured, source: str = "the cell") -> CellConfigured:
        """Return the changed configuration.

        Args:
            cell: Configuration to change.
            source: Source of the configuration, for messages.

        Raises:
            CommandError: the fixed price is missing or superfluous; bounds are missing, of which the printed
            form needs all, and pdFTSP all or none; the policy of a zone has no such prices; or a zone is
            invalid under its new policy.
        """
        if (self.price_per_thousand_samples_micros is None) == (self.policy == "fixed-price"):
            raise CommandError(
                "--policy fixed-price needs --price-per-thousand-samples-micros, and no other policy takes it"
            )
        policies = {zone.id: self._policy(zone, source) for zone in cell.zones}
        zones = tuple(zone.model_copy(update={"policy": policies[zone.id]}) for zone in cell.zones)
        for zone in zones:
            self._check_prices(zone)
            for fault in zone.policy.faults(zone):
                raise CommandError(f"zone {zone.id}: {fault.message}")
        return cell.model_copy(update={"zones": zones})

    def _policy(self, zone: Zone, source: str) -> PolicySettings:
        match self.policy:
            case None:
                is_priced = self.prices and isinstance(zone.policy, PdftspPolicy)
                return self._pdftsp(zone, source) if is_priced else zone.policy
            case "auction":
                return AuctionPolicy()
            case "pdftsp" | "published":
                return self._pdftsp(zone, source)
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

    def _pdftsp(self, zone: Zone, source: str) -> PdftspPolicy:
        published = self.policy == "published"
        fields = dict[str, Any]()
        if isinstance(zone.policy, PdftspPolicy):
            fields = zone.policy.model_dump(include=_DECLARED if published else None, exclude={"kind"})
        fields |= self.prices
        missing = [name for name in BOUNDS if name not in fields]
        if missing and (published or len(missing) < len(BOUNDS)):
            options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise CommandError(
                f"zone {zone.id} of {source} declares no bounds on bids, as {self.policy or 'pdftsp'} needs "
                f"them: give {options}"
            )
        if published:
            fields |= {"payment": "published", "order": "published", "search": "published"}
        return PdftspPolicy(kind="pdftsp", **fields)

    def _check_prices(self, zone: Zone) -> None:
        if self.prices and not isinstance(zone.policy, PdftspPolicy):
            raise CommandError(
                f"zone {zone.id} is under policy {zone.policy.kind}, which has no {', '.join(self.prices)}"
            )
