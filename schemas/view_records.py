"""The records of the compacted views: the latest state of each thing, under its key."""

from typing import ClassVar

from pydantic import Field

from schemas.base import Identifier, Micros, Record, UnixTime
from schemas.cells import Zone
from schemas.decisions import JobStateName
from schemas.facts import Facts


class JobState(Record):
    """State of a job after the latest decision about it: a record of `jobs.state`.

    Its key is `<cell>/<user>/<job>`: several users' bids may lose under the same id. It is complete: the
    payment is in every record of an admitted job.
    """

    TYPE: ClassVar = "millrace.job.state.v1"

    cell: Identifier
    zone: Identifier
    job_id: Identifier
    user: Identifier
    state: JobStateName
    reason: str
    """Reason of the decision, from its closed list."""
    facts: Facts = Field(default_factory=dict)
    decision_id: str
    time_s: UnixTime | None
    """Time of the decision by the cell's clock."""
    payment_micros: Micros | None = None
    """Present payment of the user, after returns; None for a rejected job."""
    returned_micros: Micros | None = None
    """Amount that a refund or a withdrawal returns."""
    adapter_path: str | None = None
    """Path of a completed job's adapter below the executors' output root; None without one."""
    adapter_digest: str | None = None


class ZoneState(Record):
    """Present configuration of a zone after all accepted changes: a record of `zones.state`.

    Its key is `<cell>/<zone>`. Readers that need a cell's zones read this instead of ledger and decisions.
    """

    TYPE: ClassVar = "millrace.zone.state.v1"

    cell: Identifier
    zone: Zone
    """Configuration with all nodes that the zone owns, wherever they are."""
    elsewhere: tuple[Identifier, ...] = ()
    """Nodes of the zone that serve another zone by an operator's order; loans are in `loans`."""
