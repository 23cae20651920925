"""Settings of the auction, and of the baselines for comparison (section 5.1)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from schemas.auction.deliveries import Deliveries
from schemas.base import HOURS_PER_DAY, LEAST_S, Identifier, Micros, Record
from schemas.cells import Zone
from schemas.facts import Fault
from schemas.kind import PolicySettings

MAX_BATCH_NODE_SLOTS = 2**17
"""Most pairs of a node and a slot in a zone that decides bids in batches. A solver gets the room of each
pair, in all 5 MB of a record, and Kafka accepts records up to 8 MiB."""

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

    takes_profiles: ClassVar = True
    # Omitted if it is the default, so that a configuration written before it was added keeps its bytes.
    deliveries: Annotated[Deliveries | None, Field(exclude_if=lambda deliveries: deliveries is None)] = None
    """Conditions of deliveries. With them, the zone orders pre-processing from the vendor of a plan, trains
    on what is delivered, and pays the vendor on delivery alone. None if vendors prepare data outside of the
    pipeline: training then begins after the vendor's delay, and the vendor counts as paid at admission."""

    EVEN_QUOTAS: ClassVar[bool] = False
    """Whether a plan reserves, in each of its slots, the work divided by the number of slots at that speed,
    so that a declaration of a lower speed gains little. Otherwise it reserves s_ik as printed, even in the
    last slot, which may need less."""

    def node_slots(self, zone: Zone) -> int:
        """Return the number of pairs of a node and a slot: each has prices and room."""
        return zone.horizon_slots * len(zone.nodes)


# Omitted if it is absent, so that a record has only the bounds that were declared.
_DeclaredBound = Annotated[
    Annotated[int, Field(ge=1, le=10**15)] | None, Field(exclude_if=lambda bound: bound is None)
]


class DeclaredBounds(NamedTuple):
    """Bounds on bids that an operator declares; see the fields of `PdftspPolicy`."""

    money_unit_micros: int
    max_value_per_compute_micros: int
    max_value_per_memory_micros: int


BOUNDS = DeclaredBounds._fields
"""Names of the settings that declare bounds on bids."""


def _class_faults(zone: Zone) -> Iterator[Fault]:
    """Yield a fault if there are too many classes of nodes for the search."""
    if (classes := len(zone.node_classes)) > MAX_NODE_CLASSES:
        yield Fault(
            "too_many_node_classes",
            f"{classes} pairs of gpu type and tariff, but the exact search takes at most "
            f"{MAX_NODE_CLASSES}: split the zone",
            {"classes": classes, "most_classes": MAX_NODE_CLASSES},
        )


Steepness = Literal["declared", "learned"]


def _steepness_of(fields: Mapping[str, Any]) -> Steepness:
    """Return the default of `steepness`: the bounds, if any are declared."""
    return "learned" if all(fields.get(name) is None for name in BOUNDS) else "declared"


class PdftspPolicy(MarketPolicy):
    """The published auction (section 3), with bounds on bids that are declared or learned instead of known in
    hindsight (erratum P4). The three bounds are declared together, or not at all.

    Resources are normalised by a node's capacity (erratum P5): one node-slot of compute is a whole node for
    one slot, so both bounds are densities of value, and alpha and beta are ratios of them to the money unit.
    By default the errata P1 to P3 are followed, so that it is truthful.
    """

    kind: Literal["pdftsp"]
    money_unit_micros: _DeclaredBound = None
    """Least assumed welfare per normalised resource of a bid: the unit in which Lemma 2 assumes b-bar >=
    1."""
    max_value_per_compute_micros: _DeclaredBound = None
    """Declared upper bound of bid / node-slots of compute; divided by the money unit, it is alpha."""
    max_value_per_memory_micros: _DeclaredBound = None
    """Declared upper bound of bid / node-slots of memory; divided by the money unit, it is beta."""
    payment: Literal["critical", "published"] = "critical"
    """Payment. `critical` charges the critical value (erratum P1); `published` charges Eq. 14 as printed."""
    order: Literal["room_first", "published"] = "room_first"
    """Order of the checks. `room_first` plans only node-slots with room (erratum P2); `published` plans
    regardless of room, and raises prices before it checks for room, as in Algorithm 1 as printed."""
    search: Literal["exact", "published"] = "exact"
    """Search for a plan. `exact` finds the plan of least critical value; `published` is Algorithm 2 as
    printed, which can miss it (erratum P3)."""
    max_density_units: Annotated[float, Field(ge=1e-9, le=1e9)] = 1_000.0
    """Largest b-bar, in money units per node-slot, by which one bid raises prices. Set it slightly above the
    best expected bids; otherwise one absurd bid for a small part of a node prices out all others. Without a
    money unit, ten times the mean of earlier winners bounds it instead."""
    steepness: Steepness = Field(default_factory=_steepness_of)
    """Source of alpha and beta. `declared`: the bounds above. `learned`: the winners, as soon as there are
    enough (erratum P4); the price of a full node-slot is then one that four fifths of them offered or
    exceeded; without declared bounds, one in twenty. Without bounds, it is the default, and required."""
    opening_prices: Annotated[tuple[OpeningPrices, ...], Field(max_length=16)] = ()
    """Opening prices by GPU type; zero by default, as printed."""

    @model_validator(mode="after")
    def _declare_all_or_none(self) -> Self:
        """Check that the bounds are declared together, and that there are bounds to follow."""
        missing = [name for name in BOUNDS if getattr(self, name) is None]
        if missing and (len(missing) < len(BOUNDS) or self.steepness == "declared"):
            raise ValueError(
                f"{', '.join(missing)}: missing: declare all of {', '.join(BOUNDS)}, or none of them and "
                "steepness: learned"
            )
        return self

    @property
    def bounds(self) -> DeclaredBounds | None:
        """Declared bounds; None without."""
        unit, compute, memory = (
            self.money_unit_micros,
            self.max_value_per_compute_micros,
            self.max_value_per_memory_micros,
        )
        if unit is None or compute is None or memory is None:
            return None
        return DeclaredBounds(unit, compute, memory)

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Yield faults: too many classes of nodes for the search, and opening prices of a missing GPU type or
        for the second time."""
        yield from _class_faults(zone)
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


_BYTES_PER_CLASS_SLOT = 32
"""Bytes of two prices, and of the use of two resources."""
_BYTES_PER_OPEN_SLOT = 2 * 19
"""Bytes of the certificate's open part: units of two resources, in each slot of two horizons."""
_BYTES_OF_DEMAND = 80 * 1_024
"""Bytes of 512 classes of density: the demand, and the certificate's three points."""


class AuctionPolicy(MarketPolicy):
    """The auction whose zone finds its prices itself, from the demand. It has no settings."""

    kind: Literal["auction"] = "auction"
    EVEN_QUOTAS: ClassVar = True

    @model_validator(mode="before")
    @classmethod
    def _refuse_settings(cls, fields: Any) -> Any:
        """Refuse settings that it had before pdFTSP was a policy of its own."""
        own = PdftspPolicy.model_fields.keys() - cls.model_fields.keys()
        moved = [name for name in fields if name in own]
        if moved:
            raise ValueError(f"{', '.join(moved)}: settings of policy pdftsp, write kind: pdftsp")
        return fields

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of prices: prices and use of each class of nodes, the room open to bids, and
        past bids."""
        per_slot = _BYTES_PER_CLASS_SLOT * len(zone.node_classes) + _BYTES_PER_OPEN_SLOT
        return per_slot * zone.horizon_slots + _BYTES_OF_DEMAND

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Yield a fault if there are too many classes of nodes for the search."""
        yield from _class_faults(zone)


class EarliestFinishPolicy(MarketPolicy):
    """EFT: the vendor of lowest delay, the earliest finish, at cost."""

    kind: Literal["eft"]


class NoMergingPolicy(MarketPolicy):
    """NTM: a vendor at random, the earliest finish on entirely free nodes, at cost."""

    kind: Literal["ntm"]


class TitanPolicy(MarketPolicy):
    """Titan: a vendor at random, one mixed-integer program per slot over the bids that arrived in it."""

    # A bid's demand is computed again when its batch is decided, and profiles may have changed by then.
    takes_profiles: ClassVar = False
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
                "too_many_node_slots_to_solve",
                f"{zone.horizon_slots} slots x {len(zone.nodes)} nodes = {node_slots}, but a solver accepts "
                f"at most {MAX_BATCH_NODE_SLOTS}: split the zone, or plan fewer slots ahead",
                {"node_slots": node_slots, "most_node_slots": MAX_BATCH_NODE_SLOTS},
            )


class FixedPricePolicy(MarketPolicy):
    """First come, first served: the cheapest vendor, the earliest finish, at a fixed price for the work."""

    kind: Literal["fixed_price"]
    price_per_thousand_samples_micros: Micros
