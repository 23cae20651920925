"""The records of the compacted views: the latest state of each thing, under its key."""

from typing import ClassVar

from pydantic import Field

from schemas.base import Identifier, Micros, Record, UnixTime
from schemas.cells import Zone
from schemas.decisions import JobStateName
from schemas.facts import Facts


class JobState(Record):
    """How a job stands after the latest decision about it: a record of `jobs.state`.

    Its key is `<cell>/<user>/<job>`: bids of several users may lose under the same id. It stands alone: what
    the user pays is in the record of every job that won, to its end.
    """

    TYPE: ClassVar = "millrace.job.state.v1"

    cell: Identifier
    zone: Identifier
    job_id: Identifier
    user: Identifier
    state: JobStateName
    reason: str
    """The reason of the decision, of that decision's closed list."""
    facts: Facts = Field(default_factory=dict)
    decision_id: str
    time_s: UnixTime | None
    """The cell's clock at the decision."""
    payment_micros: Micros | None = None
    """What the user pays in the end, as it stands: nothing of it is returned. None where it was rejected."""
    returned_micros: Micros | None = None
    """What a refund or a withdrawal gives back."""
    adapter_path: str | None = None
    """Where a completed job's adapter lies, below the executors' output root; None where it leaves none."""
    adapter_digest: str | None = None


class ZoneState(Record):
    """What a zone is at present, after all changes that its cell has accepted: a record of `zones.state`.

    Its key is `<cell>/<zone>`. Who needs the zones of a cell reads this, and neither ledger nor decisions.
    """

    TYPE: ClassVar = "millrace.zone.state.v1"

    cell: Identifier
    zone: Zone
    """With all nodes that it owns, wherever they are."""
    elsewhere: tuple[Identifier, ...] = ()
    """Those of its nodes that serve another zone because an operator said so; loans are in `loans`."""
