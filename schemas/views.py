"""What the compacted views hold: the latest state of a thing, under its key."""

from typing import Literal

from schemas.base import Identifier, Micros, Record, Text, UnixTime

JobStateName = Literal["admitted", "rejected", "withdrawn", "refunded", "completed"]


class JobState(Record):
    """How a job stands after the latest decision about it: a record of `jobs.state`, under `<cell>/<job>`.

    Amounts are those that this decision itself names; what an earlier one named is in `decisions`.
    """

    cell: Identifier
    zone: Identifier
    job_id: Identifier
    user: Identifier
    state: JobStateName
    reason: str
    """The reason of the decision, of that decision's closed list."""
    detail: Text = ""
    decision_id: str
    time_s: UnixTime | None
    """The cell's clock at the decision."""
    bid_micros: Micros | None = None
    payment_micros: Micros | None = None
    """What an admitted bid is charged."""
    returned_micros: Micros | None = None
    """What a refund or a withdrawal gives back."""
    adapter_path: str | None = None
    """Where a completed job's adapter lies, below the executors' output root."""
    adapter_digest: str | None = None
