"""Commands to the runner that trains LoRA adapters slot by slot."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Gib, Identifier, PositiveSamples, Record, RunId, Samples, Slot, UnixTime
from schemas.commands import Command
from schemas.lora import Dataset, LoraHyperparameters

MAX_RUNS_PER_SLOT = 128
"""On one node. So many adapters may share a fused step, and so many orders, all of the largest, fit into a
record of `commands`. A cell keeps to it by counting each task for at least this part of a node's memory."""


MEMORY_TOLERANCE_GIB = 1 / 1024
"""So much more than was reserved a run may take whose user answers for its memory: the unit in which memory
is counted. A GPU's allocator rounds each block up to 512 bytes, and a step has some hundred of them."""


class RunOrder(Record):
    """One job's part of a slot on one node."""

    run_id: RunId
    """What reports call it."""
    job_id: Identifier
    user: Identifier
    """Whose job it is: adapters of each user lie apart."""
    work_samples: PositiveSamples
    """M_i: the job is finished when so many samples are trained, over all its slots."""
    quota_samples: PositiveSamples
    """s_ik: what the plan has the node train of this job in this slot."""
    resume_samples: Samples
    """What the cell knows to be done; a checkpoint at least this far is expected."""
    dataset: Dataset
    hyperparameters: LoraHyperparameters
    speed_is_declared: bool = False
    """Whether the user answers for the speed: the first step of the run is taken alone, so that its time is
    known whoever shares the later ones."""
    # Left out where it is the default, so that orders written before it was added keep their bytes.
    memory_limit_gib: Annotated[Gib | None, Field(exclude_if=lambda gib: gib is None)] = None
    """What is reserved for the run, where its user answers for that being enough: steps that are larger than
    all before are taken alone, and a run that takes more fails. None where the zone has measured it."""


class SlotAssigned(Command):
    """Everything that a node trains in a slot; a node with nothing to train gets no such command."""

    TYPE: ClassVar = "millrace.slot.assigned.v1"
    RUNNER: ClassVar = "lora"

    base_model: Identifier
    slot: Slot
    slot_start_s: UnixTime
    slot_end_s: Annotated[float, Field(ge=0)]
    """Computed from the present slot, so that no bound on what comes in may refuse it."""
    runs: Annotated[tuple[RunOrder, ...], Field(max_length=MAX_RUNS_PER_SLOT)]


class RunCancelled(Command):
    """A job that the node may hold is over: stop it if it runs here, and publish nothing of it."""

    TYPE: ClassVar = "millrace.run.cancelled.v1"
    RUNNER: ClassVar = "lora"
    CANCELS: ClassVar = True

    job_id: Identifier
