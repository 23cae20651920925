"""Events of the `jobs` topic: bids, withdrawals and requests for a quote."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from schemas.base import (
    Gib,
    Identifier,
    Micros,
    PositiveSamples,
    Record,
    RelativePath,
    SamplesPerSecond,
    UnixTime,
)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated} is named twice")
    return names


class Dataset(Record):
    """A JSONL file below the executors' dataset root."""

    path: RelativePath
    samples: PositiveSamples
    """Size of the data, which vendors' prices and delays are functions of (D_i)."""


MAX_RANK = 1_024


class LoraHyperparameters(Record):
    """What to train, and how: all that a bid may say and an executor must be able to do."""

    rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 8
    """Width r of the low-rank update ``W + (alpha / r) B A``."""
    alpha: Annotated[float, Field(gt=0, le=65_536)] = 16.0
    """Numerator of the update's scale."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability with which an input feature of the adapter is dropped."""
    target_modules: Annotated[
        tuple[Identifier, ...],
        Field(min_length=1, max_length=64, fail_fast=True, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_distinct),
    ] = ("q_proj", "v_proj")
    """Layers that get an adapter; a layer is meant if its dotted name is, or ends with, one of these (the
    rule of PEFT)."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    """AdamW's step size."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """AdamW's decoupled weight decay."""
    batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Sequences in a micro-batch."""
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 64
    """Longest sequence in tokens; longer records are cut."""
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """The adapter's gradient is scaled down to this L2 norm."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Decides initial weights, data order and dropout masks."""


class Task(Record):
    """What is to be trained by when: all of a bid but its price (section 2.1)."""

    zone: Identifier
    work_samples: PositiveSamples
    """M_i."""
    deadline_s: UnixTime
    """d_i: the last slot of a plan ends no later than this."""
    dataset: Dataset
    hyperparameters: LoraHyperparameters = LoraHyperparameters()
    memory_gib: Gib | None = None
    """r_i; taken from the zone's throughput table when absent."""
    speed_samples_per_s: Annotated[dict[Identifier, SamplesPerSecond], Field(max_length=16)] | None = None
    """s_ik by GPU type; taken from the zone's throughput table when absent."""
    needs_preprocessing: bool = False
    """f_i: a labour vendor must prepare the data first."""


class JobSubmitted(Record):
    """A bid: a task and the most that its user would pay for it (b_i)."""

    TYPE: ClassVar = "millrace.job.submitted.v1"

    cell: Identifier
    job_id: Identifier
    user: Identifier
    bid_micros: Micros
    task: Task


class JobWithdrawalRequested(Record):
    """The user of a job that has not started gives it up."""

    TYPE: ClassVar = "millrace.job.withdrawal_requested.v1"

    cell: Identifier
    job_id: Identifier
    user: Identifier


class JobQuoteRequested(Record):
    """What would this task cost now? Answered from the same state as a bid, and changes nothing."""

    TYPE: ClassVar = "millrace.job.quote_requested.v1"

    cell: Identifier
    quote_id: Identifier
    user: Identifier
    """Who asks. The answer does not depend on it; requests of one user wait for each other, not for
    others'."""
    task: Task


JobEvent = JobSubmitted | JobWithdrawalRequested | JobQuoteRequested
RejectionReason = Literal[
    "price_not_below_bid",
    "no_room_before_deadline",
    "deadline_too_soon",
    "no_vendor",
    "cell_not_configured",
    "unknown_zone",
    "unknown_gpu_type",
    "no_throughput_known",
    "larger_than_a_node",
    "memory_understated",
    "duplicate_job",
    "not_in_schedule",
    "solver_found_nothing",
    "plan_not_feasible",
    "cell_full",
]
