"""The decisions of an experts zone, and the numbers behind them."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, Record, ZoneView
from schemas.experts.commands import LayerPlacement, RankMember
from schemas.facts import Facts
from schemas.kind import Evidence

PlacementReason = Literal["initial", "popularity_shifted", "devices_changed"]
"""`initial`: the profile stage of a service is over. `popularity_shifted`: the busiest device would get less
by the zone's least gain, as so many reports in a row have told as the zone demands. `devices_changed`: the
job has other ranks."""
RanksChangeReason = Literal[
    "started", "resumed", "preempted", "gave_way", "node_lost", "run_failed", "withdrawn", "ended"
]
"""`preempted`: a node is to leave. `gave_way`: a job of another user has waited for so long that it comes
first."""


class QueuedRanks(Evidence):
    """A job that trains or serves a mixture-of-experts model is queued."""

    kind: Literal["queued_ranks"] = "queued_ranks"
    jobs_waiting: Amount
    """Number of jobs that wait beside it."""
    ranks: Amount
    """That it needs at once."""


class LayerPlaced(Record):
    """One layer of a decision."""

    placement: LayerPlacement
    replicas: tuple[Amount, ...]
    """Devices that have each expert."""
    popularity: tuple[float, ...]
    """The part of the tokens that each expert gets, as an average in which older reports fade."""
    load_before: float
    """Load of the busiest device over the mean, with the placement before: 1 is balanced."""
    load: float
    """The same with the new one."""
    gain: float
    """1 - load / load_before; with other devices, of the tokens on the busiest."""
    reports_in_a_row: Amount
    """That told of a gain worth a change."""
    reported_tokens: Amount
    """Counted in the newest report."""


class PlacementDecided(Outcome):
    """Experts of a service are placed, or placed anew. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.placement.decided.v1"

    zone: Identifier
    job_id: Identifier
    revision: Amount
    reason: PlacementReason
    layers: tuple[LayerPlaced, ...]
    """Those that change."""


class RanksChanged(Outcome):
    """A job has ranks, or has none any more. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.ranks.changed.v1"

    zone: Identifier
    job_id: Identifier
    generation: Amount
    reason: RanksChangeReason
    members: tuple[RankMember, ...]
    """Empty where it has none."""
    facts: Facts = Field(default_factory=dict)


class ServedModel(Record):
    """State of a service."""

    job_id: Identifier
    revision: Amount
    """Revision of its present placement."""
    busiest_load: float
    """Load of the busiest device over the mean, the mean over layers, by the average popularity."""
    replicas: Amount
    """Experts on all devices and layers together."""
    tokens: Amount
    """Routed since it began, over all layers."""


class ZoneServed(ZoneView):
    """Models that an experts zone trains and serves, and jobs that wait."""

    TYPE: ClassVar = "millrace.zone.served.v1"
    VIEW: ClassVar = "experts"

    jobs_waiting: Amount
    jobs_training: Amount
    jobs_serving: Amount
    training: tuple[Identifier, ...]
    """The first of them by submission."""
    serving: tuple[ServedModel, ...]
    """The first of those that have reported."""
    devices: Amount
    used_devices: Amount
    """Those that ranks are placed on."""
