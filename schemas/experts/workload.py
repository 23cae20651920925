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
"""Most experts on a device in the thesis (section 4.7.1)."""
PUBLISHED_PATH_LENGTH = 3
"""Number of layers of a sample path in the thesis (section 4.7.1)."""
PUBLISHED_MICRO_OP_MB = 30.0

Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
"""Number of processes of a job, each with its own device."""
Experts = Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
PerDevice = Annotated[int, Field(ge=1, le=MAX_PER_DEVICE)]
GatingMode = Literal["top1", "top2", "adaptive"]
ThresholdOn = Literal["chosen", "all"]
"""Probabilities whose difference the threshold T of adaptive gating bounds (erratum G1). `chosen`: those of a
token's two best experts, divided by their sum. `all`: those of the softmax over all experts."""
Initialization = Literal["dense", "random"]
SchemeName = Literal[
    "balanced", "lina", "without_estimation", "without_fine_tuning", "one_per_device", "eplb", "ideal"
]


class GatingRule(Record):
    """Rule for the number of experts that a token gets (thesis, section 5.3.1)."""

    mode: GatingMode = "top1"
    """Mode of the rule. `adaptive`: two experts if the router hardly prefers the first, one otherwise."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Threshold T: two experts if P(top-1) - P(top-2) <= T (erratum G1). For `adaptive` only."""
    # Omitted if it is the default, so that jobs written before it was added keep their bytes.
    threshold_on: Annotated[ThresholdOn | None, Field(exclude_if=lambda on: on is None)] = None
    """Probabilities that T is compared on. None: those with which the model was trained; `chosen` if it was
    not trained with adaptive gating. For `adaptive` only."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mode == "adaptive" and self.threshold is None:
            raise ValueError("adaptive gating needs a threshold from 0 (top-1) to 1 (top-2)")
        if self.mode != "adaptive" and self.threshold is not None:
            raise ValueError(f"gating {self.mode} has no threshold: leave it out, or set mode to adaptive")
        if self.mode != "adaptive" and self.threshold_on is not None:
            raise ValueError(
                f"gating {self.mode} has no threshold: leave threshold_on out, or set mode to adaptive"
            )
        return self


class Conversion(Record):
    """Conversion of a dense model to one with experts: its feed-forward networks are copied, or replaced by
    new ones."""

    experts: Annotated[int, Field(ge=2, le=MAX_EXPERTS)]
    """Number of experts of each converted layer."""
    every: Annotated[int, Field(ge=1, le=MAX_MOE_LAYERS)] = 1
    """Interval between converted layers, in layers: every n-th one is converted."""
    noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Standard deviation of the noise added to each copy, relative to that of its weights."""
    # Omitted if it is the default, so that jobs written before it was added keep their bytes.
    initialization: Annotated[Initialization, Field(exclude_if=lambda way: way == "dense")] = "dense"
    """Weights that experts begin with. `dense`: those of the network that they replace, with noise. `random`:
    new ones, drawn by the job's seed (thesis, section 5.4.3; erratum G4)."""


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
    """Weight of the load-balancing loss (Eq. 5.4), which is added to the model's own."""
    curriculum: bool = False
    """Whether samples are ordered by their complexity (thesis, section 5.3.2)."""
    micro_op_mb: Annotated[float, Field(ge=1e-6, le=100_000)] = PUBLISHED_MICRO_OP_MB
    """Size of the parts in which gradients are exchanged, in megabytes (thesis, section 4.4.2); below 1 MB,
    there are about 64 parts at most."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of initial weights, data order and dropout masks."""


class MoeTrainWorkload(Workload):
    """A number of samples of a dataset to train a mixture-of-experts model on."""

    kind: Literal["moe-train"] = "moe-train"
    work_samples: PositiveSamples
    model: RelativePath
    """A local Hugging Face model directory, below the executors' root for models."""
    conversion: Conversion | None = None
    """Conversion of a dense model; None if the model has experts."""
    dataset: Dataset
    gating: GatingRule = GatingRule(mode="top2")
    """Gating, by default top-2 in training (erratum I2)."""
    adapter: LoraHyperparameters | None = None
    """Shape of a LoRA adapter to train, on experts too if its target modules name them; None trains all
    weights. Of its fields the rank, alpha, dropout and target modules count; the rest is in
    `hyperparameters`."""
    hyperparameters: MoeHyperparameters = MoeHyperparameters()
    ranks: Ranks = 1
    experts_per_device: PerDevice | None = None
    """Experts per device; None to double it until an expert micro-op outlasts its all-to-all (thesis, section
    4.4.2)."""

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
        """Number of samples of the whole work."""
        return self.work_samples


class Requests(Record):
    """Requests to a service, drawn from a file of prompts."""

    dataset: Dataset
    """JSONL file with a prompt per line."""
    rate_per_s: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """Requests per second; None if the next batch begins when the last one is done."""
    most: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Number of requests after which the service ends; the file is read repeatedly for them. None: all
    requests of the file once, or, with `until_s`, repeatedly until then."""
    until_s: UnixTime | None = None
    """Time at which the service ends at the latest."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of arrival times."""


class MoeServeWorkload(Workload):
    """A mixture-of-experts model that serves requests, with experts placed by the routed tokens."""

    kind: Literal["moe-serve"] = "moe-serve"
    model: RelativePath
    """A local Hugging Face model directory with experts, below the executors' root for models."""
    requests: Requests
    gating: GatingRule = GatingRule()
    """Gating, by default top-1 in inference (erratum I2)."""
    ranks: Ranks = 1
    most_experts_per_device: PerDevice = PUBLISHED_PER_DEVICE
    scheme: SchemeName = "balanced"
    """Scheme of placing experts for each batch; all but `balanced` and `lina` are for comparison."""
    path_length: Annotated[int, Field(ge=1, le=8)] = PUBLISHED_PATH_LENGTH
    """Number of layers of a sample path (l)."""
    profile_batches: Annotated[int, Field(ge=0, le=1_000_000)] = 32
    """Number of batches that are profiled before experts are placed by popularity. For a model with sample
    paths of its training, of this length or longer, those count until then; with 0 batches, always."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 8
    """Requests of one batch, of all ranks together."""
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 64
    """Longest request in tokens; longer ones are cut."""

    @property
    def total_samples(self) -> int | None:
        """Number of requests; None if only the time ends the service."""
        if self.requests.most is None and self.requests.until_s is None:
            return self.requests.dataset.samples
        return self.requests.most


class ExpertsTerms(Terms):
    """No bid and no deadline: the job waits until there are devices for its ranks."""

    kind: Literal["experts"] = "experts"
