"""The numbers behind the decisions of an auction zone, and its decisions about plans and prices."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import (
    HOURS_PER_DAY,
    Amount,
    Gib,
    Identifier,
    Micros,
    Outcome,
    Record,
    Samples,
    SamplesPerSecond,
    Slot,
    ZoneView,
)
from schemas.kind import Evidence


class PriceParts(Record):
    """The critical value of a plan, q + e + resource prices (erratum P1), part by part.

    A baseline of the auction has no prices of resources; one that asks a fixed price for the work states that
    as the price of compute, and no operational cost beside it.

    The vendor and the operational cost are whole micros; the resource prices are not, and their sum is
    rounded up once, in the payment.
    """

    vendor_micros: Amount
    """q_in."""
    operational_micros: Amount
    """Sum of e_ikt over the plan."""
    compute_micros: float
    """Highest compute price (lambda) over the plan's node-slots, times the plan's node-slots of compute. With
    nothing declared: the price of the cheapest plan less the other parts, as far as it is one of compute."""
    memory_micros: float
    """Highest memory price (phi) over the plan's node-slots, times the plan's node-slots of memory. With
    nothing declared: likewise, as far as it is one of memory."""


NodeSlot = tuple[Slot, Identifier]
"""A slot, and the node that is used in it: the unit of placement."""


class Plan(Record):
    """A schedule l_i: the job trains on one node in each of its slots, which need not be consecutive."""

    vendor: Identifier | None
    """The labour vendor that prepares the data (z_in = 1)."""
    node_slots: tuple[NodeSlot, ...]
    """Slot and node of each, ascending in slots (x_ikt = 1)."""
    samples: Samples
    """What the plan's node-slots train together: at least the work that it was made for."""


class Room(Record):
    """How the node-slots between arrival and deadline stand for a task, counted once each.

    Each node-slot without room is counted under the first that holds of: node closed (down, cordoned or
    leaving), too little compute, too little memory.
    """

    node_slots: int
    with_room: int
    on_closed_nodes: int
    without_compute: int
    without_memory: int
    binding: Literal["time", "nodes", "compute", "memory", "none"]
    """The main obstacle to a plan; `none` if there is a plan."""


SpeedSource = Literal["row", "raised_to_row", "declared_within_row", "capped_by_row", "declared"]


class CountedSpeed(Record):
    """The speed of a task on a GPU type, and its source."""

    gpu_type: Identifier
    samples_per_s: SamplesPerSecond
    source: SpeedSource
    """`row`: the zone's throughput row, since nothing else was declared; `raised_to_row`: the row, since less
    was declared; `capped_by_row`: the row, since more was declared; `declared`: as declared, since no row
    covers the task. Only of the last does the user answer for a task that is slower.

    `declared_within_row` is in older decisions alone: as declared, which was less than the row."""


MemorySource = Literal["row", "raised_to_row", "declared"]


class CountedMemory(Record):
    """What a task takes of a node beside the base model, and the source of that."""

    gib: Gib
    source: MemorySource
    """`row`: the largest of the zone's throughput rows that cover the task, since nothing was declared;
    `raised_to_row`: the same, since less was declared; `declared`: as declared, since that is no less than
    those rows, or since there are none. Only in the latter case does the user answer for a task that takes
    more. Where even that is less than a node's memory divided by the most runs of a slot, this part is
    counted."""


class PriceBasis(Record):
    """What the prices of a zone that finds them itself are read off: its forecast of demand, made of the bids
    that it remembers."""

    base_micros_per_thousand_samples: float
    """What room costs everywhere ahead, per thousand samples that nodes could train in it."""
    guard_micros_per_thousand_samples: float
    """What the last room of a slot is kept for: where a class is full, room costs seven tenths of the way
    from the base to it."""
    compute_part: float
    """Of the price of room; the rest is for memory."""
    span_slots: int
    """How far ahead demand and room are compared."""
    remembered_slots: float
    """Of how many slots the bids are that demand is known from, older ones counting less, and each as much as
    it was expected to ask for: a few on a first day or after a sudden change, up to the horizon after a
    steady day."""
    expected_slots: float | None = None
    """What the span ahead would ask for if all of it were like its busiest stretch that begins now, in slots
    that ask for the mean; null in older decisions."""
    believed_part: float = 0.0
    """How much of an hour's difference from the mean is known to come back the next day, and so counts in
    what is expected, from 0 to 1; 0 while too few hours were seen twice, and where the last hours were not
    like those of the days before."""
    asked_share: float
    """What was asked for lately per slot, at any price, as a share of what the zone has; of losers at most as
    much as of winners."""
    fall_per_slot: float
    """The part by which prices may fall from one slot to the next."""


class Offer(Record):
    """The market's present offer for a task, independent of any bid for the task."""

    price: PriceParts | None
    """None where no plan exists."""
    lowest_winning_bid_micros: Amount | None
    """The least bid that wins now, and what it would pay at most. None where no plan exists, or where all
    bids of a slot are decided together."""
    plan: Plan | None
    plan_gap_micros: Amount | None
    """By how much a cheaper plan may undercut this one's critical value at most: 0 where it is proven that
    none does, more where the search ended with its budget of counted steps and this is the best plan found.
    None where no plan exists, and under policies that do not look for the cheapest."""
    speeds: tuple[CountedSpeed, ...]
    """What the plan counts with, by GPU type; types that are missing cannot run the task."""
    memory: CountedMemory | None = None
    """What the plan counts with, on every GPU type; None in older decisions."""
    basis: Annotated[PriceBasis | None, Field(exclude_if=lambda basis: basis is None)] = None
    """What the price was read off; None where bounds are declared, and under policies without such prices."""
    earliest_deadline_s: Annotated[float, Field(ge=0)] | None
    """The earliest deadline for which a plan exists at all; None where none does within the horizon."""
    room: Room


class WelfareDifference(Record):
    """What reality has made of the plans as admitted: what each cause has added to the welfare, negative
    where it took something. Together they are the realised welfare less the planned."""

    finished_early_micros: int
    """Operation that jobs did not need, since their work was done before their plan was over."""
    replanned_micros: int
    """What plans that were made again, or cut short, cost less to run than those before them."""
    refunded_micros: int
    """Jobs that could not be finished by no fault of their own: their bids, less operation not spent."""
    failed_micros: int
    """Likewise, of jobs that ended by the fault of their task, its data or its declaration."""
    withdrawn_micros: int
    """Vendors' prices of jobs that were withdrawn, less what new plans for them had added to their cost."""


class Certificate(Record):
    """How good a zone's decisions are proven to be, without solving anything offline, and what came of them.

    `dual_bound_micros` is the value of a feasible point of the dual D_1 (Eq. 6, erratum P8): no schedule of
    the same bids, known all in advance, has a higher welfare. It bounds plans, so it is compared with plans.
    """

    planned_welfare_micros: int
    """Of the plans as admitted: bids less vendors' prices and operational costs, whatever became of them
    since. Bids that were withdrawn are no part of it, nor of the bound, unless setbacks had put off a job
    for more than a horizon."""
    dual_bound_micros: int
    proven_ratio: float | None
    """dual_bound / planned_welfare, never below 1; None while the planned welfare is not positive."""
    realised_welfare_micros: int
    """As things stand: what is still planned counts as planned, the rest as it came out."""
    difference: WelfareDifference
    """Realised less planned welfare, by cause."""


class AuctionEvidence(Evidence):
    """What an auction zone says beside a decision about a job."""

    kind: Literal["auction"] = "auction"
    bid_micros: Micros | None = None
    """Of a bid that was just judged."""
    offer: Offer | None = None
    """What the market said of the task. None where it could not be judged, and where nothing was to be."""
    certificate: Certificate | None = None
    """How the zone stands after the decision; none beside a quote, which changes nothing."""

    @property
    def lowest_winning_bid_micros(self) -> int | None:
        """Of the offer, if there is one."""
        return None if self.offer is None else self.offer.lowest_winning_bid_micros


def evidence_of(decision: Outcome) -> AuctionEvidence:
    """The evidence of a decision about a job or a quote; an empty one where it has none of an auction."""
    evidence = getattr(decision, "evidence", None)
    return evidence if isinstance(evidence, AuctionEvidence) else AuctionEvidence()


class JobReplanned(Outcome):
    """The rest of an admitted job's work is replanned before its deadline, at no extra charge.

    The job gives up all its node-slots from `first_slot` on and holds those of `plan` in their place. They
    may be none: what its present runs have still to report then suffices.
    """

    TYPE: ClassVar = "millrace.job.replanned.v1"

    job_id: Identifier
    zone: Identifier
    reason: Literal["node_lost", "node_leaving", "behind_plan", "run_failed"]
    first_slot: Slot
    """The first slot that could be planned."""
    remaining_samples: Samples
    """What the plan is for: not what present runs have still to report."""
    plan: Plan
    """The part still to come."""
    extra_operational_micros: int
    """Change of the plan's operational cost, borne by the provider; negative where it costs less."""
    evidence: AuctionEvidence


class ClassPrices(Record):
    """The node-slots ahead of one class of nodes: how full they are, and what they cost on average."""

    gpu_type: Identifier
    tariff: Identifier
    nodes_up: int
    nodes: int
    compute_used_share: float
    memory_used_share: float
    mean_compute_price_micros: float
    """Of C_kp lambda_kt, per node-slot."""
    highest_compute_price_micros: float
    mean_memory_price_micros: float
    """Of (C_km - r_b) phi_kt, per node-slot."""
    highest_memory_price_micros: float


_OfHours = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...],
    Field(min_length=HOURS_PER_DAY, max_length=HOURS_PER_DAY),
]


class ZonePriced(ZoneView):
    """The state of a zone's market when a slot opens."""

    TYPE: ClassVar = "millrace.zone.priced.v1"
    VIEW: ClassVar = "prices"

    slot: Slot
    live_jobs: int
    classes: tuple[ClassPrices, ...]
    basis: Annotated[PriceBasis | None, Field(exclude_if=lambda basis: basis is None)] = None
    """What prices are read off from now on, as in an offer."""
    expected_by_hour: Annotated[_OfHours | None, Field(exclude_if=lambda parts: parts is None)] = None
    """The forecast for the day ahead: what a slot that begins in each hour of the day (UTC) is expected to
    ask for, as a part of the mean. None where all hours are expected to be alike, so on the first two days,
    and where `basis` is None."""
    certificate: Certificate
