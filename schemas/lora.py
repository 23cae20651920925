"""The workload of a job that trains a LoRA adapter."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.base import Gib, Identifier, PositiveSamples, Record, RelativePath, SamplesPerSecond, distinct
from schemas.kind import Workload


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
    alpha: Annotated[float, Field(ge=1e-6, le=65_536)] = 16.0
    """Numerator of the update's scale."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability with which an input feature of the adapter is dropped."""
    target_modules: Annotated[
        tuple[Identifier, ...],
        Field(min_length=1, max_length=64, fail_fast=True, json_schema_extra={"uniqueItems": True}),
        AfterValidator(distinct),
    ] = ("q_proj", "v_proj")
    """Layers that get an adapter; a layer is meant if its dotted name is, or ends with, one of these (the
    rule of PEFT)."""
    learning_rate: Annotated[float, Field(ge=1e-12, le=10)] = 1e-3
    """AdamW's step size."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """AdamW's decoupled weight decay."""
    batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Sequences in a micro-batch."""
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 64
    """Longest sequence in tokens; longer records are cut."""
    max_gradient_norm: Annotated[float, Field(ge=1e-9, le=1e6)] = 1.0
    """The adapter's gradient is scaled down to this L2 norm."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Decides initial weights, data order and dropout masks."""


class LoraWorkload(Workload):
    """So many samples of a dataset, to be trained into an adapter of the zone's base model (section 2.1)."""

    kind: Literal["lora"] = "lora"
    work_samples: PositiveSamples
    """M_i."""
    dataset: Dataset
    hyperparameters: LoraHyperparameters = LoraHyperparameters()
    memory_gib: Gib | None = None
    """r_i; taken from the zone's throughput table when absent."""
    speed_samples_per_s: Annotated[dict[Identifier, SamplesPerSecond], Field(max_length=16)] | None = None
    """s_ik by GPU type; taken from the zone's throughput table when absent."""
    needs_preprocessing: bool = False
    """f_i: a labour vendor must prepare the data first."""

    @property
    def total_samples(self) -> int:
        """All of the work."""
        return self.work_samples
