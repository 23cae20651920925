"""The decisions of an experts zone, and the numbers behind them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, Record, is_none
from schemas.experts.commands import LayerPlacement, RankMember
from schemas.facts import Facts
from schemas.kind import Evidence

PlacementReason = Literal["initial", "popularity_shifted", "devices_changed"]
"""Reason of a placement. `initial`: the profile stage of a service is over. `popularity_shifted`: by the
consecutive reports that the zone requires, the load of the busiest device falls by the zone's least gain.
`devices_changed`: the job has other ranks."""
RanksChangeReason = Literal[
    "started", "resumed", "preempted", "gave_way", "node_lost", "run_failed", "withdrawn", "ended"
]
"""Reason of a change of ranks. `preempted`: a node is to leave. `gave_way`: preempted for a job of another
user that has waited for too long."""


class QueuedRanks(Evidence):
    """A job that trains or serves a mixture-of-experts model is queued."""

    kind: Literal["queued_ranks"] = "queued_ranks"
    jobs_waiting: Amount
    """Number of other waiting jobs."""
    ranks: Amount
    """Number of ranks that it needs at once."""
    # Omitted without measured steps, so that decisions of other jobs keep their bytes.
    step_s: Annotated[float | None, Field(exclude_if=is_none)] = None
    """Expected duration of a step of a training, by measured steps of its kind."""
    dispatch_s: Annotated[float | None, Field(exclude_if=is_none)] = None
    """Part of it in which tokens are sent to experts on other ranks, and back."""
    running_s: Annotated[float | None, Field(exclude_if=is_none)] = None
    """Expected duration of the whole training."""
    duration_error_pct: Annotated[float | None, Field(exclude_if=is_none)] = None
    """Expected error of `running_s`."""


class LayerPlaced(Record):
    """Decision on one layer."""

    placement: LayerPlacement
    replicas: tuple[Amount, ...]
    """Number of devices with each expert."""
    popularity: tuple[float, ...]
    """Part of the tokens for each expert, as an average in which older reports fade."""
    load_before: float
    """Load of the busiest device over the mean, with the previous placement: 1 is balanced."""
    load: float
    """Load of the busiest device over the mean, with the new placement."""
    gain: float
    """Gain, 1 - load / load_before. If the devices have changed, it is that of the tokens on the busiest
    one."""
    reports_in_a_row: Amount
    """Number of consecutive reports with a sufficient gain."""
    reported_tokens: Amount
    """Number of tokens in the newest report."""


class PlacementDecided(Outcome):
    """Experts of a service are placed, or moved. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.placement.decided.v1"

    zone: Identifier
    job_id: Identifier
    revision: Amount
    reason: PlacementReason
    layers: tuple[LayerPlaced, ...]
    """Layers whose placement changes."""


class RanksChanged(Outcome):
    """A job gets ranks, or loses them. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.ranks.changed.v1"

    zone: Identifier
    job_id: Identifier
    generation: Amount
    reason: RanksChangeReason
    members: tuple[RankMember, ...]
    """Ranks on each node; empty if it has none."""
    facts: Facts = Field(default_factory=dict)
