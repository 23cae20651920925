"""Measurements of kinds of jobs: duration and memory of their steps by GPU type, GPUs and micro-batch."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from schemas.base import Event, Gib, Identifier, Outcome, Record, RelativePath, distinct
from schemas.facts import Fault
from schemas.kind import InputTopic

PROFILES = InputTopic(
    name="profiles",
    summary="Profiles of kinds of jobs, measured outside the cell's own runs.",
    writers="profilers",
    writer_field="profiler",
)

MAX_SEQUENCE_TOKENS = 2**20
MAX_PROFILE_RANK = 1_024
MAX_SAMPLES_PER_GPU_S = 1e6
MAX_TOKENS_PER_GPU_S = 1e8
"""Bounds of the speed of one GPU, far above any known one: a faster point is an error or a forgery."""

LEAST_STEP_S = 1e-6
StepSeconds = Annotated[float, Field(ge=LEAST_STEP_S, le=86_400)]
PartSeconds = Annotated[float, Field(ge=0, le=86_400)]
MicroBatchSize = Annotated[int, Field(ge=1, le=4_096)]
GpuCount = Annotated[int, Field(ge=1, le=65_536)]
MeasuredCount = Annotated[int, Field(ge=1, le=10**9)]
TokensPerSample = Annotated[float, Field(ge=1, le=MAX_SEQUENCE_TOKENS)]
Precision = Literal["float32", "bfloat16", "float16", "int8", "int4"]
"""Type of the numbers of a pass."""


def sequence_class(tokens: float) -> int:
    """Return the class of a sequence length: the least power of two that is no shorter."""
    held = 1
    while held < tokens:
        held *= 2
    return held


def _power_of_two(tokens: int) -> int:
    if tokens & (tokens - 1):
        raise ValueError(f"{tokens} is no class of lengths: give a power of two")
    return tokens


def _ascending(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names))


class ProfileKey(Record):
    """The shape of a kind of jobs: a measurement counts only for jobs of equal shape."""

    base_model: RelativePath
    """The zone's base model; in a zone whose jobs have models of their own, the path of the job's."""
    sequence_tokens: Annotated[int, Field(ge=1, le=MAX_SEQUENCE_TOKENS), AfterValidator(_power_of_two)]
    """Class of the sequence length in tokens: the least power of two that is no shorter than a high quantile
    (95 %) of the sequences."""
    rank: Annotated[int, Field(ge=0, le=MAX_PROFILE_RANK)]
    """Rank of the LoRA adapter; 0 if all weights are trained."""
    target_modules: Annotated[
        tuple[Identifier, ...],
        Field(max_length=64, fail_fast=True),
        AfterValidator(distinct),
        AfterValidator(_ascending),
    ]
    """Layers with an adapter, in ascending order."""
    precision: Precision
    gradient_checkpointing: bool = False
    # Omitted if it is the default, so that profiles written before it was added keep their bytes.
    dataset: Annotated[RelativePath | None, Field(exclude_if=lambda path: path is None)] = None
    """Dataset of the measured steps; None for any."""
    variant: Annotated[Identifier | None, Field(exclude_if=lambda variant: variant is None)] = None
    """Further property of the model that changes its steps, such as its experts and their gating."""


class ProfilePoint(Record):
    """A measurement in one configuration of GPUs and micro-batch."""

    gpu_type: Identifier
    gpus: GpuCount = 1
    """GPUs of the job, each with a micro-batch of its own."""
    nodes: GpuCount = 1
    micro_batch_size: MicroBatchSize
    """Sequences that one GPU takes at a time."""
    step_s: StepSeconds
    """Median duration of a step, with one pass per GPU and the exchange between GPUs."""
    exchange_s: PartSeconds = 0.0
    """Part of `step_s` for exchanges between GPUs."""
    memory_gib: Gib | None = None
    """Most memory of one GPU besides the base model; None if not measured."""
    loader_s: PartSeconds | None = None
    """Time of the data loader per step; None if not measured."""
    tokens_per_sample: TokensPerSample
    """Mean number of tokens of a sequence in the measured steps."""
    steps: MeasuredCount
    """Number of measured steps."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.exchange_s > self.step_s:
            raise ValueError(f"exchange_s is {self.exchange_s}, longer than the step of {self.step_s} s")
        if self.nodes > self.gpus:
            raise ValueError(f"{self.nodes} nodes for {self.gpus} gpus")
        if fault := speed_fault(self.micro_batch_size, self.tokens_per_sample, self.step_s):
            raise fault.error
        return self

    @property
    def samples_per_s(self) -> float:
        """Sequences per second of all GPUs."""
        return self.gpus * self.micro_batch_size / self.step_s


def speed_fault(samples: float, tokens_per_sample: float, step_s: float) -> Fault | None:
    """Return the fault of a step that no GPU can do in the time; None if it is possible."""
    samples_per_s = samples / step_s
    if samples_per_s <= MAX_SAMPLES_PER_GPU_S and samples_per_s * tokens_per_sample <= MAX_TOKENS_PER_GPU_S:
        return None
    return Fault(
        "faster_than_hardware",
        f"a step of {samples:g} sequences of {tokens_per_sample} tokens in {step_s} s is faster than "
        "any GPU: check the units",
        {"samples": samples, "tokens_per_sample": tokens_per_sample, "step_s": step_s},
    )


class ProfileReported(Event):
    """A profile that was measured outside the cell's own runs, for jobs of a zone.

    It counts as `offline`, whatever it states: only the reports of runs that the cell has ordered count as
    measured by its nodes. Its topic has a role of its own, so that users cannot write to it.
    """

    TYPE: ClassVar = "millrace.profile.reported.v1"

    zone: Identifier
    profiler: Identifier
    """Name of the writer."""
    key: ProfileKey
    points: Annotated[tuple[ProfilePoint, ...], Field(min_length=1, max_length=128)]
    losses: Annotated[tuple[Annotated[float, Field(ge=0, le=1e9)], ...], Field(max_length=1_024)] = ()
    """Training loss of each measured iteration, from the first on; empty if not recorded."""

    @model_validator(mode="after")
    def _of_its_key(self) -> Self:
        settings = [(p.gpu_type, p.gpus, p.nodes, p.micro_batch_size) for p in self.points]
        if len(set(settings)) < len(settings):
            raise ValueError("two points have one configuration: give the measurement of all their steps")
        longest = max(point.tokens_per_sample for point in self.points)
        if longest > self.key.sequence_tokens:
            raise ValueError(
                f"a point has {longest} tokens per sample, and sequence_tokens is {self.key.sequence_tokens}"
            )
        return self


class ProfileAccepted(Outcome):
    """An offline profile is kept for later jobs of the zone."""

    TYPE: ClassVar = "millrace.profile.accepted.v1"

    zone: Identifier
    profiler: Identifier
    reason: Literal["recorded"]
    points: int


class MeasuredSteps(Record):
    """Steps that a run took since its last report, alone on its devices."""

    micro_batch_size: MicroBatchSize
    """Most sequences that one GPU took at a time."""
    step_s: StepSeconds
    """Mean duration of these steps, without the data loader."""
    tokens_per_sample: TokensPerSample
    steps: MeasuredCount
    precision: Precision
    loader_s: PartSeconds | None = None
    """Mean time of the data loader per step; None if not measured."""
    # Omitted if they are the defaults, so that reports written before they were added keep their bytes.
    gpus: Annotated[GpuCount, Field(exclude_if=lambda gpus: gpus == 1)] = 1
    """GPUs of the run on all nodes."""
    samples_per_step: Annotated[
        int | None, Field(ge=1, le=2**20, exclude_if=lambda samples: samples is None)
    ] = None
    """Sequences of a step of all GPUs together; None for one micro-batch on each GPU."""
    exchange_s: Annotated[PartSeconds, Field(exclude_if=lambda exchange_s: exchange_s == 0)] = 0.0
    """Part of `step_s` for exchanges between GPUs, waits for others included: of gradients or, for a model
    with experts, of tokens to experts on other GPUs and back (dispatch)."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.exchange_s > self.step_s:
            raise ValueError(f"exchange_s is {self.exchange_s}, longer than the step of {self.step_s} s")
        if fault := speed_fault(self.samples / self.gpus, self.tokens_per_sample, self.step_s):
            raise fault.error
        return self

    def has_length_of(self, sequence_length: int) -> bool:
        """Return whether the mean sequence is in the class of a job's longest sequence."""
        return sequence_class(self.tokens_per_sample) == sequence_class(sequence_length)

    @property
    def samples(self) -> int:
        """Sequences of a step of all GPUs together."""
        return self.samples_per_step or self.gpus * self.micro_batch_size

    @property
    def passes(self) -> float:
        """Mean number of passes of a GPU in a step."""
        return self.samples / (self.gpus * self.micro_batch_size)

    @property
    def samples_per_s(self) -> float:
        """Sequences per second of all GPUs, the data loader's time included."""
        return self.samples / (self.step_s + (self.loader_s or 0.0))
