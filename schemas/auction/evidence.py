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

    A baseline of the auction has no prices of resources; one with a fixed price for the work states it as the
    price of compute, without an operational cost.

    The vendor and the operational cost are whole micros; the resource prices are not, and their sum is
    rounded up once, in the payment.
    """

    vendor_micros: Amount
    """Price of the vendor (q_in)."""
    operational_micros: Amount
    """Sum of e_ikt over the plan."""
    compute_micros: float
    """Highest compute price (lambda) over the plan's node-slots, times the plan's node-slots of compute.
    Without declared bounds: the part for compute of the cheapest plan's price less the other parts."""
    memory_micros: float
    """Highest memory price (phi) over the plan's node-slots, times the plan's node-slots of memory. Without
    declared bounds: likewise the part for memory."""


NodeSlot = tuple[Slot, Identifier]
"""A slot and the node used in it: the unit of placement."""


class Plan(Record):
    """A schedule l_i: the job trains on one node in each of its slots, which need not be consecutive."""

    vendor: Identifier | None
    """The labour vendor that prepares the data (z_in = 1)."""
    node_slots: tuple[NodeSlot, ...]
    """Slots with their nodes, in ascending order (x_ikt = 1)."""
    samples: Samples
    """Number of samples that the node-slots train together: at least the work of the plan."""


class Room(Record):
    """Node-slots between arrival and deadline by their room for a task, each counted once.

    Each node-slot without room counts for the first true reason of: node closed (down, cordoned or leaving),
    too little compute, too little memory.
    """

    node_slots: int
    with_room: int
    on_closed_nodes: int
    without_compute: int
    without_memory: int
    binding: Literal["time", "nodes", "compute", "memory", "none"]
    """The main obstacle to a plan; `none` if there is a plan."""


SpeedSource = Literal["row", "raised_to_row", "declared_within_row", "capped_by_row", "declared"]


ProfileSource = Literal["measured", "interpolated", "offline", "own_runs"]
"""Source of a profile. `measured`: runs of other users' jobs of equal shape on nodes of the zone. The others
count only where there is neither a row nor a declaration. `interpolated`: such runs at other micro-batches;
`offline`: a published profile; `own_runs`: runs of the user's own jobs, which count like a declaration."""


class CountedSpeed(Record):
    """The speed of a task on a GPU type, and its source."""

    gpu_type: Identifier
    samples_per_s: SamplesPerSecond
    source: SpeedSource
    """Source of the speed. `row`: the zone's throughput row, since no speed was declared; `raised_to_row`:
    the row, since less was declared; `capped_by_row`: the row, since more was declared; `declared`: as
    declared, since no row covers the task. Only with the last is the user responsible for a slower task.

    With `speed_from`, a profile of the cell takes the place of the row.

    `declared_within_row`, only in older decisions: as declared, which was less than the row."""
    speed_from: Annotated[ProfileSource | None, Field(exclude_if=lambda origin: origin is None)] = None
    """Source of the profile; None if the speed is of the zone's table or declared."""


MemorySource = Literal["row", "raised_to_row", "declared"]


class CountedMemory(Record):
    """The memory of a task on a node besides the base model, and its source."""

    gib: Gib
    source: MemorySource
    """Source of the memory. `row`: the largest of the zone's throughput rows that cover the task, since no
    memory was declared; `raised_to_row`: likewise, since less was declared; `declared`: as declared, since
    that is no less than those rows, or no row covers the task. Only in the latter case is the user
    responsible for a task that takes more. The least value is a node's memory divided by the most runs of a
    slot.

    A profile of the cell takes the place of the row of its GPU type; `memory_from` names one that counts."""
    memory_from: Annotated[ProfileSource | None, Field(exclude_if=lambda origin: origin is None)] = None
    """Source of the profile; None if the memory is of the zone's table or declared."""


class PriceBasis(Record):
    """The basis of prices without declared bounds: the zone's forecast of demand by the bids that it
    keeps."""

    base_micros_per_thousand_samples: float
    """Base price of room in all slots ahead, per thousand samples that nodes could train in it."""
    guard_micros_per_thousand_samples: float
    """Guard price for the last room of a slot: in a full class, the price of room is seven tenths of the way
    from the base price to it."""
    compute_part: float
    """Part of the price of room for compute; the rest is for memory."""
    span_slots: int
    """Number of slots ahead for which demand and room are compared."""
    remembered_slots: float
    """Number of slots whose bids the forecast uses, weighted by age and by expected demand: a few on a first
    day or after a sudden change, up to the horizon after a steady day."""
    expected_slots: float | None = None
    """Demand of the span ahead if all of it equalled its busiest part that begins now, in slots of mean
    demand; null in older decisions."""
    believed_part: float = 0.0
    """Part of an hour's difference from the mean that recurs the next day, by which forecasts use it, from 0
    to 1; 0 while too few hours were observed twice, and if the last hours differed from those of earlier
    days."""
    asked_share: float
    """Recent demand per slot at any price, as a part of the zone's capacity; that of losers counts at most as
    much as that of winners."""
    fall_per_slot: float
    """Part by which prices may fall from one slot to the next."""


class Offer(Record):
    """The market's present offer for a task, independent of any bid for the task."""

    price: PriceParts | None
    """Critical value by its parts; None without a plan."""
    lowest_winning_bid_micros: Amount | None
    """Least bid that wins now, which is also its highest payment. None without a plan, or if all bids of a
    slot are decided together."""
    plan: Plan | None
    plan_gap_micros: Amount | None
    """Bound on the difference between the critical values of this plan and of the cheapest plan. It is 0 if
    this plan is proven to be the cheapest, and more if the budget of counted steps ended the search. None
    without a plan, and under policies that do not search for the cheapest."""
    speeds: tuple[CountedSpeed, ...]
    """Speeds that the plan assumes, by GPU type; missing types cannot run the task."""
    memory: CountedMemory | None = None
    """Memory that the plan assumes, on every GPU type; None in older decisions."""
    basis: Annotated[PriceBasis | None, Field(exclude_if=lambda basis: basis is None)] = None
    """Basis of the price; None under policies without such prices."""
    earliest_deadline_s: Annotated[float, Field(ge=0)] | None
    """Earliest deadline with a plan; None without one within the horizon."""
    room: Room


class WelfareDifference(Record):
    """Realised less planned welfare, by cause: additions to the welfare of the admitted plans, or, if
    negative, reductions."""

    finished_early_micros: int
    """Operational cost saved because jobs completed before their plans were over."""
    replanned_micros: int
    """Operational cost saved by new or shortened plans, compared with those before them."""
    refunded_micros: int
    """Bids of jobs that could not be finished through no fault of their own, less the unspent operational
    cost."""
    failed_micros: int
    """Likewise for jobs that ended by the fault of their task, its data or its declaration."""
    withdrawn_micros: int
    """Vendors' prices of withdrawn jobs, less the additional cost of new plans for them."""
    # Omitted if it is the default, so that certificates written before it was added keep their bytes.
    undelivered_micros: Annotated[int, Field(exclude_if=lambda micros: micros == 0)] = 0
    """Vendors' prices that were not paid, as nothing was delivered for them."""


class Certificate(Record):
    """The proven quality of a zone's decisions, without an offline solution, and their results.

    `dual_bound_micros` is the value of a feasible point of the dual D_1 (Eq. 6, erratum P8): no schedule of
    the same bids, all known in advance, has a higher welfare. It bounds plans, so it is compared with plans.
    """

    planned_welfare_micros: int
    """Welfare of the admitted plans: bids less vendors' prices and operational costs, whatever their results.
    Withdrawn bids are not part of it or of the bound, unless setbacks had delayed a job for more than a
    horizon."""
    dual_bound_micros: int
    proven_ratio: float | None
    """Ratio dual_bound / planned_welfare, never below 1; None while the planned welfare is not positive."""
    realised_welfare_micros: int
    """Present welfare: future parts count as planned, past ones by their results."""
    difference: WelfareDifference
    """Realised less planned welfare, by cause."""


class AuctionEvidence(Evidence):
    """Evidence of an auction zone for a decision about a job."""

    kind: Literal["auction"] = "auction"
    bid_micros: Micros | None = None
    """Bid of a job that was just decided on."""
    offer: Offer | None = None
    """Offer of the market for the task. None if there was none to make, or the task could not be
    evaluated."""
    certificate: Certificate | None = None
    """Certificate of the zone after the decision; None for a quote, which changes nothing."""

    @property
    def lowest_winning_bid_micros(self) -> int | None:
        """Least bid that wins by the offer; None without one."""
        return None if self.offer is None else self.offer.lowest_winning_bid_micros


def evidence_of(decision: Outcome) -> AuctionEvidence:
    """Return the evidence of a decision about a job or a quote; an empty one without any of an auction."""
    evidence = getattr(decision, "evidence", None)
    return evidence if isinstance(evidence, AuctionEvidence) else AuctionEvidence()


class JobReplanned(Outcome):
    """The rest of an admitted job's work is replanned before its deadline, at no extra charge.

    The node-slots of `plan` replace all its node-slots from `first_slot` on. The plan may be empty if the
    work that its present runs have yet to report suffices.
    """

    TYPE: ClassVar = "millrace.job.replanned.v1"

    job_id: Identifier
    zone: Identifier
    reason: Literal[
        "node_lost", "node_leaving", "behind_plan", "run_failed", "delivery_late", "delivery_failed"
    ]
    first_slot: Slot
    """First slot that could be planned."""
    remaining_samples: Samples
    """Work of the plan, without that which present runs have yet to report."""
    plan: Plan
    """Future part of the plan."""
    extra_operational_micros: int
    """Change of the plan's operational cost, borne by the provider; negative where it costs less."""
    evidence: AuctionEvidence


class ClassPrices(Record):
    """The node-slots ahead of one class of nodes: their use, and their mean prices."""

    gpu_type: Identifier
    tariff: Identifier
    nodes_up: int
    nodes: int
    compute_used_share: float
    memory_used_share: float
    mean_compute_price_micros: float
    """Mean of C_kp lambda_kt, per node-slot."""
    highest_compute_price_micros: float
    mean_memory_price_micros: float
    """Mean of (C_km - r_b) phi_kt, per node-slot."""
    highest_memory_price_micros: float


_OfHours = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...],
    Field(min_length=HOURS_PER_DAY, max_length=HOURS_PER_DAY),
]


class ZonePriced(ZoneView):
    """The state of a zone's market when a slot opens. No view can fold it from other
    decisions: it follows from the mechanism's state, to which rejected bids contribute."""

    TYPE: ClassVar = "millrace.zone.priced.v1"
    VIEW: ClassVar = "prices"

    slot: Slot
    live_jobs: int
    classes: tuple[ClassPrices, ...]
    basis: Annotated[PriceBasis | None, Field(exclude_if=lambda basis: basis is None)] = None
    """Basis of prices from now on, as in an offer."""
    expected_by_hour: Annotated[_OfHours | None, Field(exclude_if=lambda parts: parts is None)] = None
    """Forecast for the day ahead: demand of a slot that begins in each hour of the day (UTC), as a part of
    the mean. None if all hours are expected to be equal, as on the first two days, or without `basis`."""
    certificate: Certificate
