"""The policies that a zone may run under: the auction, and the baselines it is compared with (section
5.1)."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from schemas.base import HOURS_PER_DAY, Identifier, Micros, Record

HourlyPrices = Annotated[
    tuple[Annotated[float, Field(ge=0, le=10**15)], ...],
    Field(min_length=HOURS_PER_DAY, max_length=HOURS_PER_DAY),
]
"""Micros per node-slot, by the hour of the day in UTC that a slot begins in."""


class OpeningPrices(Record):
    """What the cells of a GPU type cost before anything is taken of them: a forecast of the day's demand.

    No bid is in it, so it keeps the auction truthful; the better it is, the fewer bids get room that later
    ones would have paid more for.
    """

    gpu_type: Identifier
    compute_micros: HourlyPrices
    memory_micros: HourlyPrices


class AuctionPolicy(Record):
    """How the auction prices: declared bounds on bids stand in for hindsight (erratum P4).

    Resources are normalised by a node's capacity (erratum P5): one node-slot of compute is a whole node for
    one slot, so both bounds are densities of value, and alpha and beta are ratios of them to the money unit.
    """

    kind: Literal["auction"] = "auction"
    payment: Literal["critical", "published"] = "critical"
    """`critical` charges the critical value (erratum P1); `published` charges Eq. 14 as printed."""
    order: Literal["room_first", "published"] = "room_first"
    """`room_first` offers a plan only cells with room (erratum P2); `published` plans regardless of room, and
    raises prices before it checks for room, as Algorithm 1 is printed."""
    # Left out where it is the default, so that a configuration written before it was added keeps its bytes.
    search: Annotated[Literal["exact", "published"], Field(exclude_if=lambda search: search == "exact")] = (
        "exact"
    )
    """`exact` finds the plan of least critical value; `published` is Algorithm 2 as printed, which can miss
    it (erratum P3)."""
    money_unit_micros: Annotated[int, Field(ge=1, le=10**15)]
    """The least welfare per normalised resource that a bid is taken to bring: the unit in which Lemma 2
    assumes b-bar >= 1."""
    max_value_per_compute_micros: Annotated[int, Field(ge=1, le=10**15)]
    """Declared upper bound of bid / node-slots of compute; over the money unit it is alpha."""
    max_value_per_memory_micros: Annotated[int, Field(ge=1, le=10**15)]
    """Declared upper bound of bid / node-slots of memory; over the money unit it is beta."""
    max_density_units: Annotated[float, Field(gt=0, le=1e9)] = 1_000.0
    """The largest b-bar, in money units per node-slot, with which one bid raises prices: a higher bid raises
    them no more. Somewhat above the best bids that are to be expected; otherwise one absurd bid for a sliver
    of a node prices out all others."""
    steepness: Annotated[
        Literal["declared", "learned"], Field(exclude_if=lambda steepness: steepness == "declared")
    ] = "declared"
    """`declared` takes alpha and beta from the bounds above; `learned` from the winners, as soon as there
    are enough (erratum P4): a full cell then costs what four fifths of them offered or more."""
    opening_prices: Annotated[
        tuple[OpeningPrices, ...], Field(max_length=16, exclude_if=lambda prices: not prices)
    ] = ()
    """By GPU type; where none is given, prices open at zero, as printed."""


class EarliestFinishPolicy(Record):
    """EFT: the vendor of lowest delay, the earliest finish, at cost."""

    kind: Literal["eft"]


class NoMergingPolicy(Record):
    """NTM: a vendor at random, the earliest finish on nodes that are wholly free, at cost."""

    kind: Literal["ntm"]


class TitanPolicy(Record):
    """Titan: a vendor at random, one mixed-integer program per slot over the bids that came in it."""

    kind: Literal["titan"]
    time_limit_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """After so long the best plan found counts."""
    relative_gap: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The search ends when its plan is proven to be so close to the best there is."""


class FixedPricePolicy(Record):
    """First come, first served: the cheapest vendor, the earliest finish, at a fixed price for the work."""

    kind: Literal["fixed_price"]
    price_per_thousand_samples_micros: Micros


def _kind(policy: Any) -> str | None:
    """What a policy says it is; one that says nothing is an auction, as when there was no other."""
    kind = policy.get("kind", "auction") if isinstance(policy, dict) else getattr(policy, "kind", None)
    return kind if isinstance(kind, str) else None


Policy: TypeAlias = Annotated[
    Annotated[AuctionPolicy, Tag("auction")]
    | Annotated[EarliestFinishPolicy, Tag("eft")]
    | Annotated[NoMergingPolicy, Tag("ntm")]
    | Annotated[TitanPolicy, Tag("titan")]
    | Annotated[FixedPricePolicy, Tag("fixed_price")],
    Discriminator(
        _kind,
        custom_error_type="policy_kind",
        custom_error_message="the policy is of no known kind: auction, eft, ntm, titan and fixed_price are",
    ),
]
