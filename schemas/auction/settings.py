"""Settings of the auction, and of the baselines for comparison (section 5.1)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from schemas.auction.deliveries import Deliveries
from schemas.base import HOURS_PER_DAY, LEAST_S, Identifier, Micros, Record
from schemas.cells import Zone
from schemas.facts import Fault
from schemas.kind import PolicySettings

MAX_BATCH_NODE_SLOTS = 2**17
"""Most pairs of a node and a slot in a zone whose bids are decided in batches: a solver gets the room of each
pair, which is 5 MB of a record, and Kafka accepts records up to 8 MiB."""

MAX_NODE_CLASSES = 4
"""Most pairs of GPU type and tariff in a zone. The different speeds of more such classes have too many
combinations for the schedule search."""

HourlyPrices = Annotated[
    tuple[Annotated[float, Field(ge=0, le=10**15)], ...],
    Field(min_length=HOURS_PER_DAY, max_length=HOURS_PER_DAY),
]
"""Micros per node-slot, by the hour of the day (UTC) in which a slot begins."""


class OpeningPrices(Record):
    """Prices of the unused node-slots of a GPU type: a forecast of a day's demand.

    It does not depend on bids, so the auction stays truthful. The better it is, the fewer bids get room for
    which later ones would have paid more.
    """

    gpu_type: Identifier
    compute_micros: HourlyPrices
    memory_micros: HourlyPrices


class MarketPolicy(PolicySettings):
    """A policy that plans slots of nodes ahead, over the zone's horizon."""

    # Omitted if it is the default, so that a configuration written before it was added keeps its bytes.
    deliveries: Annotated[Deliveries | None, Field(exclude_if=lambda deliveries: deliveries is None)] = None
    """Conditions of deliveries. With them, the zone orders pre-processing from the vendor of a plan, trains
    on what is delivered, and pays the vendor on delivery alone. None if vendors prepare data outside of the
    pipeline: training then begins after the vendor's delay, and the vendor counts as paid at admission."""

    def node_slots(self, zone: Zone) -> int:
        """Return the number of pairs of a node and a slot: each has prices and room."""
        return zone.horizon_slots * len(zone.nodes)


_BYTES_PER_CLASS_SLOT = 32
"""Bytes of two prices, and of the use of two resources."""
_BYTES_PER_OPEN_SLOT = 2 * 19
"""Bytes of the certificate's open part: units of two resources, in each slot of two horizons."""
_BYTES_OF_DEMAND = 80 * 1_024
"""Bytes of 512 classes of density: the demand, and the certificate's three points."""

_BOUNDS = ("money_unit_micros", "max_value_per_compute_micros", "max_value_per_memory_micros")
_Declared = Annotated[int | None, Field(ge=1, le=10**15, exclude_if=lambda bound: bound is None)]


class AuctionPolicy(MarketPolicy):
    """Pricing of the auction. Without declared bounds, the zone finds its prices itself.

    With declared bounds on bids it is the published auction, in which they replace hindsight (erratum P4).
    Resources are then normalised by a node's capacity (erratum P5): one node-slot of compute is a whole node
    for one slot, so both bounds are densities of value, and alpha and beta are ratios of them to the money
    unit. All other settings belong to this form.
    """

    kind: Literal["auction"] = "auction"
    payment: Literal["critical", "published"] = "critical"
    """Payment. `critical` charges the critical value (erratum P1); `published` charges Eq. 14 as printed."""
    order: Literal["room_first", "published"] = "room_first"
    """Order of the checks. `room_first` plans only node-slots with room (erratum P2); `published` plans
    regardless of room, and raises prices before it checks for room, as in Algorithm 1 as printed."""
    # Omitted if it is the default, so that a configuration written before it was added keeps its bytes.
    search: Annotated[Literal["exact", "published"], Field(exclude_if=lambda search: search == "exact")] = (
        "exact"
    )
    """Search for a plan. `exact` finds the plan of least critical value; `published` is Algorithm 2 as
    printed, which can miss it (erratum P3)."""
    money_unit_micros: _Declared = None
    """Least assumed welfare per normalised resource of a bid: the unit in which Lemma 2 assumes b-bar >=
    1."""
    max_value_per_compute_micros: _Declared = None
    """Declared upper bound of bid / node-slots of compute; over the money unit it is alpha."""
    max_value_per_memory_micros: _Declared = None
    """Declared upper bound of bid / node-slots of memory; over the money unit it is beta."""
    max_density_units: Annotated[float, Field(ge=1e-9, le=1e9)] = 1_000.0
    """Largest b-bar, in money units per node-slot, by which one bid raises prices. Set it slightly above the
    best expected bids; otherwise one absurd bid for a small part of a node prices out all others."""
    steepness: Annotated[
        Literal["declared", "learned"], Field(exclude_if=lambda steepness: steepness == "declared")
    ] = "declared"
    """Source of alpha and beta. `declared`: the bounds above. `learned`: the winners, as soon as there are
    enough (erratum P4); the price of a full node-slot is then one that four fifths of them offered or
    exceeded."""
    opening_prices: Annotated[
        tuple[OpeningPrices, ...], Field(max_length=16, exclude_if=lambda prices: not prices)
    ] = ()
    """Opening prices by GPU type; zero by default, as printed."""

    @property
    def is_declared(self) -> bool:
        """Whether bounds on bids are declared."""
        return self.money_unit_micros is not None

    @property
    def quotas(self) -> Literal["full", "even"]:
        """Quota that a plan reserves in each of its slots. With declared bounds it is s_ik as printed, even
        in the last slot, which may need less. Otherwise it is the work divided by the number of slots at that
        speed, so that a declaration of a lower speed gains little."""
        return "full" if self.is_declared else "even"

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of prices without declared bounds: prices and use of each class of nodes, the
        room open to bids, and past bids."""
        if self.is_declared:
            return 0
        per_slot = _BYTES_PER_CLASS_SLOT * len(zone.node_classes) + _BYTES_PER_OPEN_SLOT
        return per_slot * zone.horizon_slots + _BYTES_OF_DEMAND

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Yield faults: too many classes of nodes for the search, incomplete bounds or settings that require
        them, and opening prices of a missing GPU type or for the second time."""
        missing = [name for name in _BOUNDS if getattr(self, name) is None]
        if 0 < len(missing) < len(_BOUNDS):
            yield Fault(
                "bounds_missing",
                f"declares some bounds on bids and not {', '.join(missing)}: give all of them, or none",
                {"settings": tuple(missing)},
            )
        elif missing and (
            needless := [
                name
                for name, field in type(self).model_fields.items()
                if name not in MarketPolicy.model_fields and getattr(self, name) != field.default
            ]
        ):
            yield Fault(
                "bounds_not_declared",
                f"{', '.join(needless)} belongs to declared bounds: give {', '.join(_BOUNDS)}, or "
                "let the zone find its prices without it",
                {"settings": tuple(needless)},
            )
        if (classes := len(zone.node_classes)) > MAX_NODE_CLASSES:
            yield Fault(
                "too_many_node_classes",
                f"{classes} pairs of gpu type and tariff, but the exact search takes at most "
                f"{MAX_NODE_CLASSES}: split the zone",
                {"classes": classes, "most_classes": MAX_NODE_CLASSES},
            )
        types = {gpu.name for gpu in zone.gpu_types}
        named: set[str] = set()
        for prices in self.opening_prices:
            if prices.gpu_type in named:
                yield Fault(
                    "given_twice",
                    f"opening prices of gpu type {prices.gpu_type} is given twice",
                    {"gpu_type": prices.gpu_type},
                )
            elif prices.gpu_type not in types:
                yield Fault(
                    "unknown_gpu_type",
                    f"opening prices name gpu type {prices.gpu_type}, which the zone lacks",
                    {"gpu_type": prices.gpu_type},
                )
            named.add(prices.gpu_type)


class EarliestFinishPolicy(MarketPolicy):
    """EFT: the vendor of lowest delay, the earliest finish, at cost."""

    kind: Literal["eft"]


class NoMergingPolicy(MarketPolicy):
    """NTM: a vendor at random, the earliest finish on entirely free nodes, at cost."""

    kind: Literal["ntm"]


class TitanPolicy(MarketPolicy):
    """Titan: a vendor at random, one mixed-integer program per slot over the bids that arrived in it."""

    kind: Literal["titan"]
    time_limit_s: Annotated[float, Field(ge=LEAST_S, le=86_400)] = 60.0
    """Time after which the best plan so far counts."""
    relative_gap: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The search ends when its plan is proven to be this close to the best."""

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Yield a fault if the room is too large for a solver's problem."""
        node_slots = self.node_slots(zone)
        if node_slots > MAX_BATCH_NODE_SLOTS:
            yield Fault(
                "too_many_node_slots",
                f"{zone.horizon_slots} slots x {len(zone.nodes)} nodes = {node_slots}, but a solver accepts "
                f"at most {MAX_BATCH_NODE_SLOTS}: split the zone, or plan fewer slots ahead",
                {"node_slots": node_slots, "most_node_slots": MAX_BATCH_NODE_SLOTS},
            )


class FixedPricePolicy(MarketPolicy):
    """First come, first served: the cheapest vendor, the earliest finish, at a fixed price for the work."""

    kind: Literal["fixed_price"]
    price_per_thousand_samples_micros: Micros
