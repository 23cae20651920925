"""Measurements of executors on fine-tuning jobs, on the topic `fleet`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Identifier, Record
from schemas.fleet import Loss, RunReport
from schemas.merging.workload import MAX_GPUS, Accuracy, Gpus, Iterations
from schemas.profiles import MeasuredCount, Precision, TokensPerSample

MAX_EMBEDDING = 512
MAX_TRACE = 1_024
"""Most iterations of a profile run."""

Seconds = Annotated[float, Field(ge=1e-9, le=1e6)]
"""A duration above zero: a nanosecond at least."""
MeasuredSeconds = Annotated[float, Field(ge=0, le=1e6)]
MeasuredGib = Annotated[float, Field(ge=0, le=1e6)]


class MeasuredStep(Record):
    """Duration of an optimizer step in one configuration: a row of the lookup table S(a, cfgs)."""

    gpus: Gpus
    nodes: Annotated[int, Field(ge=1, le=MAX_GPUS)]
    micro_batch_size: Annotated[int, Field(ge=1, le=4_096)]
    """Number of sequences that one GPU took at a time."""
    accumulation_steps: Annotated[int, Field(ge=1, le=4_096)]
    """Number of passes before the gradients were exchanged."""
    step_s: Seconds
    """Median duration of the measured steps, accumulation and exchange included."""
    exchange_s: MeasuredSeconds
    """Part of `step_s` for the exchange of gradients."""
    # Omitted if unknown, so that reports written before they were added keep their bytes.
    steps: Annotated[MeasuredCount | None, Field(exclude_if=lambda steps: steps is None)] = None
    """Number of measured steps."""
    tokens_per_sample: Annotated[TokensPerSample | None, Field(exclude_if=lambda tokens: tokens is None)] = (
        None
    )
    """Mean number of tokens of a sequence in them."""
    precision: Annotated[Precision | None, Field(exclude_if=lambda precision: precision is None)] = None


class TaskProfiled(RunReport):
    """Result of a bounded run of a new job. It ends that run."""

    TYPE: ClassVar = "millrace.task.profiled.v1"

    losses: Annotated[tuple[Loss, ...], Field(min_length=1, max_length=MAX_TRACE)]
    """The mean token loss of each iteration, from the first on."""
    embedding: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e12)], ...], Field(min_length=1, max_length=MAX_EMBEDDING)
    ]
    """Task2Vec: the diagonal Fisher information of the shared backbone on a sample of the data, averaged over
    groups of parameters. All jobs of a base model have the same length."""
    features: Annotated[
        tuple[Annotated[float, Field(ge=-1e12, le=1e12)], ...], Field(max_length=MAX_EMBEDDING)
    ] = ()
    """Task2Feat: the mean of the penultimate layer's outputs over the same sample; empty if not measured."""
    accuracy: Accuracy | None
    """Accuracy on the validation data before the first iteration; None without such data."""
    accuracy_after_epoch: Accuracy | None = None
    """Accuracy after the iteration that completes the first epoch; None without validation data, or if the
    run ended before."""
    steps: Annotated[tuple[MeasuredStep, ...], Field(min_length=1, max_length=16)]
    memory_gib: MeasuredGib
    """Most memory of one GPU besides the base model, with the micro-batch of the first of `steps`."""
    loader_s: MeasuredSeconds
    """Time to prepare the data loader: opening, checking and tokenising until the first batch."""
    dataset_samples: Annotated[int, Field(ge=1, le=10**12)]
    """Number of records in the training data."""

    @property
    def ends_run(self) -> bool:
        """Whether the run is over: always."""
        return True


class TaskEvaluated(RunReport):
    """Progress of a job in training, measured at the end of each of its epochs at least."""

    TYPE: ClassVar = "millrace.task.evaluated.v1"

    iterations: Iterations
    """Iterations of this job so far; 0 for the receiver of a temporal merge while its donor trains."""
    epochs: Annotated[float, Field(ge=0, le=1e9)]
    """Passes over its data; while its donor trains, those of the donor since the merge began."""
    loss: Loss | None
    """Mean token loss of training since the evaluation before; None while its donor trains."""
    accuracy: Accuracy
    """Accuracy on its validation data, with the present weights."""
    phase: Literal["own", "donor"]
    """Phase of the job. `own`: the job itself is trained. `donor`: it is the receiver of a temporal merge,
    and its accuracy is measured with the present weights of its donor (section 4.3, estimation error
    handling)."""
    partner: Identifier | None
    """The other job of the merge; None without a merge."""
    step: MeasuredStep | None
    """Duration of its steps since the evaluation before; None while its donor trains."""
