"""What executors are told. Commands are part of the chained decision log and are also sent to `commands`."""

from typing import ClassVar

from schemas.base import Identifier, PositiveSamples, Record, Samples, Slot, UnixTime
from schemas.jobs import Dataset, LoraHyperparameters


class RunOrder(Record):
    """One job's part of a slot on one node."""

    job_id: Identifier
    work_samples: PositiveSamples
    """M_i: the job is finished when so many samples are trained, over all its slots."""
    quota_samples: PositiveSamples
    """s_ik: what the plan has the node train of this job in this slot."""
    resume_samples: Samples
    """What the cell knows to be done; a checkpoint at least this far is expected."""
    dataset: Dataset
    hyperparameters: LoraHyperparameters


class SlotAssigned(Record):
    """Everything that a node trains in a slot; a node with nothing to train gets no such command."""

    TYPE: ClassVar = "millrace.slot.assigned.v1"

    zone: Identifier
    base_model: Identifier
    node: Identifier
    slot: Slot
    slot_start_s: UnixTime
    slot_end_s: UnixTime
    runs: tuple[RunOrder, ...]


class RunCancelled(Record):
    """A job that the node may hold is over (refunded): stop it if it runs here."""

    TYPE: ClassVar = "millrace.run.cancelled.v1"

    zone: Identifier
    node: Identifier
    job_id: Identifier


Command = SlotAssigned | RunCancelled
