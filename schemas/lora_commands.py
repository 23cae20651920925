"""Commands to the runner that trains LoRA adapters slot by slot."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import (
    Gib,
    Identifier,
    PositiveSamples,
    Record,
    RelativePath,
    RunId,
    Samples,
    Slot,
    UnixTime,
)
from schemas.commands import Command
from schemas.lora import Dataset, Delivery, LoraHyperparameters

MAX_RUNS_PER_SLOT = 128
"""Most runs of a slot on one node: the adapters that may share a fused step, and the orders of the largest
size that fit into a record of `commands`. A cell ensures it, as each task counts for at least this part of a
node's memory."""


MEMORY_TOLERANCE_GIB = 1 / 1024
"""Memory that a run may take beyond its reservation if its user is responsible for that: the unit in which
memory is counted. A GPU's allocator rounds each block up to 512 bytes, and a step has some hundred blocks."""


class RunOrder(Record):
    """One job's part of a slot on one node."""

    run_id: RunId
    """Id of the run in reports."""
    job_id: Identifier
    user: Identifier
    """Owner of the job: the adapters of each user have their own folder."""
    work_samples: PositiveSamples
    """Number of samples after which the job is finished, over all its slots (M_i)."""
    quota_samples: PositiveSamples
    """Number of samples of the job that the plan assigns to the node in this slot (s_ik)."""
    resume_samples: Samples
    """Number of samples done, as reported; a checkpoint at least this far is expected."""
    dataset: Dataset
    # Omitted if it is the default, so that orders written before it was added keep their bytes.
    delivery: Annotated[Delivery | None, Field(exclude_if=lambda delivery: delivery is None)] = None
    """The file of `dataset` as its vendor delivered it: the run fails without training if the file differs.
    None if no delivery was ordered."""
    source: Annotated[RelativePath | None, Field(exclude_if=lambda source: source is None)] = None
    """Source file of the delivery. Each delivered line is a line of it. None without a delivery."""
    hyperparameters: LoraHyperparameters
    speed_is_declared: bool = False
    """Whether the user is responsible for the speed: the first step of the run is taken alone to measure its
    time, whichever runs share the later steps."""
    # Omitted if it is the default, so that orders written before it was added keep their bytes.
    memory_limit_gib: Annotated[Gib | None, Field(exclude_if=lambda gib: gib is None)] = None
    """Memory reserved for the run if its user is responsible for that: a step larger than all before is taken
    alone, and a run that takes more memory fails. None if the zone has measured the memory."""


class SlotAssigned(Command):
    """All runs of a node in a slot; a node without runs gets no such command."""

    TYPE: ClassVar = "millrace.slot.assigned.v1"
    RUNNER: ClassVar = "lora"

    base_model: Identifier
    slot: Slot
    slot_start_s: UnixTime
    slot_end_s: Annotated[float, Field(ge=0)]
    """End of the slot, computed from the present slot, so that no bound of inputs applies."""
    runs: Annotated[tuple[RunOrder, ...], Field(max_length=MAX_RUNS_PER_SLOT)]


class RunCancelled(Command):
    """A job that the node may hold is over: the node stops it if it runs there, and publishes no adapter."""

    TYPE: ClassVar = "millrace.run.cancelled.v1"
    RUNNER: ClassVar = "lora"
    CANCELS: ClassVar = True

    job_id: Identifier
