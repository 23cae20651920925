"""Jobs that train or serve a mixture-of-experts model, and their terms."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import PositiveSamples, Record, RelativePath, UnixTime
from schemas.kind import Terms, Workload
from schemas.lora import Dataset, LoraHyperparameters

MAX_RANKS = 256
MAX_EXPERTS = 256
"""Most experts of one layer."""
MAX_MOE_LAYERS = 256
MAX_PER_DEVICE = 64
PUBLISHED_PER_DEVICE = 4
"""The most experts that are packed on a device (thesis, section 4.7.1)."""
PUBLISHED_PATH_LENGTH = 3
"""Layers of a sample path (section 4.7.1)."""
PUBLISHED_MICRO_OP_MB = 30.0

Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
"""Processes of a job, each with a device of its own."""
Experts = Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
PerDevice = Annotated[int, Field(ge=1, le=MAX_PER_DEVICE)]
GatingMode = Literal["top1", "top2", "adaptive"]
SchemeName = Literal[
    "balanced", "lina", "without_estimation", "without_fine_tuning", "one_per_device", "eplb", "ideal"
]


class GatingRule(Record):
    """Rule for the number of experts that a token gets (thesis, section 5.3.1)."""

    mode: GatingMode = "top1"
    """`adaptive`: two where the router hardly prefers the first, one otherwise."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """T: two experts when P(top-1) - P(top-2) <= T (erratum G1). Given with `adaptive` alone."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mode == "adaptive" and self.threshold is None:
            raise ValueError("adaptive gating needs a threshold from 0 (top-1) to 1 (top-2)")
        if self.mode != "adaptive" and self.threshold is not None:
            raise ValueError(f"gating {self.mode} has no threshold: leave it out, or set mode to adaptive")
        return self


class Conversion(Record):
    """Conversion of a dense model to one with experts: its feed-forward networks are copied."""

    experts: Annotated[int, Field(ge=2, le=MAX_EXPERTS)]
    """Experts of each layer that is converted."""
    every: Annotated[int, Field(ge=1, le=MAX_MOE_LAYERS)] = 1
    """One layer of so many is converted."""
    noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Standard deviation of what is added to each copy, relative to that of its weights."""


class MoeHyperparameters(Record):
    """Hyperparameters of the training, for any number of ranks: its global batch never changes."""

    global_batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = 32
    """Sequences in a step of all ranks together."""
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 64
    """Longest sequence in tokens; longer records are cut."""
    learning_rate: Annotated[float, Field(ge=1e-12, le=10)] = 1e-4
    """AdamW's step size."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """AdamW's decoupled weight decay."""
    max_gradient_norm: Annotated[float, Field(ge=1e-9, le=1e6)] = 1.0
    """The gradient is scaled down to this L2 norm."""
    balance_weight: Annotated[float, Field(ge=0, le=10)] = 0.01
    """Weight of the load-balancing loss (Eq. 5.4) beside the model's own."""
    curriculum: bool = False
    """Whether samples come in the order of their complexity (thesis, section 5.3.2)."""
    micro_op_mb: Annotated[float, Field(ge=1e-6, le=100_000)] = PUBLISHED_MICRO_OP_MB
    """Gradients are exchanged in parts of so many megabytes (thesis, section 4.4.2), but in about 64 parts
    of less than one at most."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Decides initial weights, data order and dropout masks."""


class MoeTrainWorkload(Workload):
    """A number of samples of a dataset to train a mixture-of-experts model on."""

    kind: Literal["moe-train"] = "moe-train"
    work_samples: PositiveSamples
    model: RelativePath
    """A local Hugging Face model directory, below the executors' root for models."""
    conversion: Conversion | None = None
    """For a dense model; None where the model has experts."""
    dataset: Dataset
    gating: GatingRule = GatingRule(mode="top2")
    """Top-2 in training, where nothing else is said (erratum I2)."""
    adapter: LoraHyperparameters | None = None
    """The shape of a LoRA adapter to train, on experts too where its target modules name them; None trains
    all weights. Of its fields the rank, alpha, dropout and target modules count; the rest is in
    `hyperparameters`."""
    hyperparameters: MoeHyperparameters = MoeHyperparameters()
    ranks: Ranks = 1
    experts_per_device: PerDevice | None = None
    """None: doubled until an expert micro-op outlasts its all-to-all (thesis, section 4.4.2)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hyperparameters.global_batch_size < self.ranks:
            raise ValueError(
                f"a global batch of {self.hyperparameters.global_batch_size} has no sample for each of "
                f"{self.ranks} ranks"
            )
        if self.conversion is not None and (self.experts_per_device or 1) > self.conversion.experts:
            raise ValueError(
                f"experts_per_device is {self.experts_per_device}, a layer has {self.conversion.experts}"
            )
        return self

    @property
    def total_samples(self) -> int:
        """All of the work."""
        return self.work_samples


class Requests(Record):
    """Requests to a service, drawn from a file of prompts."""

    dataset: Dataset
    """JSONL, a prompt each line."""
    rate_per_s: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """Number that arrive in a second; None where the next batch comes when the last is done."""
    most: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """It ends after so many: the file is begun anew when it is through. None: once through the file, or, with
    `until_s`, until then."""
    until_s: UnixTime | None = None
    """It ends then at the latest."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of arrival times."""


class MoeServeWorkload(Workload):
    """A mixture-of-experts model that serves requests, its experts placed where the tokens go."""

    kind: Literal["moe-serve"] = "moe-serve"
    model: RelativePath
    """A local Hugging Face model directory with experts, below the executors' root for models."""
    requests: Requests
    gating: GatingRule = GatingRule()
    """Top-1 in inference, where nothing else is said (erratum I2)."""
    ranks: Ranks = 1
    most_experts_per_device: PerDevice = PUBLISHED_PER_DEVICE
    scheme: SchemeName = "balanced"
    """Who places experts for each batch; all but `balanced` and `lina` are there to be compared with."""
    path_length: Annotated[int, Field(ge=1, le=8)] = PUBLISHED_PATH_LENGTH
    """Layers of a sample path (l)."""
    profile_batches: Annotated[int, Field(ge=0, le=1_000_000)] = 32
    """Number of batches that are profiled before experts are placed by popularity."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 8
    """Requests of one batch, of all ranks together."""
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 64
    """Longest request in tokens; longer ones are cut."""

    @property
    def total_samples(self) -> int | None:
        """Requests; None where only the time ends it."""
        if self.requests.most is None and self.requests.until_s is None:
            return self.requests.dataset.samples
        return self.requests.most


class ExpertsTerms(Terms):
    """No bid and no deadline: the job waits until there are devices for its ranks."""

    kind: Literal["experts"] = "experts"
