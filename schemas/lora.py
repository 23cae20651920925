"""The workload of a job that trains a LoRA adapter."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from schemas.base import Gib, Identifier, PositiveSamples, Record, RelativePath, SamplesPerSecond, distinct
from schemas.cells import MAX_RANK
from schemas.kind import Workload

_COLUMN_NAME = r"^[^\x00-\x1f\x7f]+$"
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=_COLUMN_NAME)]
"""Name of a field of the records in a file."""


class TextColumns(Record):
    """Field names of text, or of text and its class."""

    text: ColumnName
    """Name of the text's field; the whole text bears loss, unless there is a label."""
    label: ColumnName | None = None
    """Name of the field with the class, if the base model is a classifier."""


class PromptColumns(Record):
    """Field names of a prompt and its completion."""

    prompt: ColumnName
    """Name of the prompt's field, without loss."""
    completion: ColumnName
    """Name of the completion's field, with loss."""


class ChatColumns(Record):
    """Field names of a conversation."""

    messages: ColumnName
    """Name of the field with an array of objects with `role` and `content`."""


class InstructionColumns(Record):
    """Field names of an instruction and its answer."""

    instruction: ColumnName
    """Name of the instruction's field, without loss."""
    input: ColumnName | None = None
    """Name of the input's field; a record may lack it."""
    output: ColumnName
    """Name of the answer's field, with loss."""


Columns = TextColumns | PromptColumns | ChatColumns | InstructionColumns
"""Names of the records' fields in a file; other fields are ignored."""


class Dataset(Record):
    """A JSONL file below the executors' dataset root."""

    path: RelativePath
    samples: PositiveSamples
    """Size of the data (D_i), on which vendors' prices and delays depend."""
    columns: Annotated[Columns | None, Field(exclude_if=lambda columns: columns is None)] = None
    """Names of the records' fields in the file; absent if the fields have the default names."""


class Delivery(Record):
    """A JSONL file below the executors' dataset root that a labour vendor has made of a job's data."""

    path: RelativePath
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256 of the file."""
    size_bytes: Annotated[int, Field(ge=1, le=2**53)]
    samples: PositiveSamples
    """Number of records in the file."""


ALL_LINEAR = "all-linear"
"""PEFT's name for all linear layers but the output head."""


def _listed(targets: object) -> object:
    """Accept `all-linear` without a list, as PEFT does."""
    if targets == ALL_LINEAR:
        return (targets,)
    # After a validator in Python, an array in JSON is a list, which strict validation refuses.
    return tuple(targets) if isinstance(targets, list) else targets


def _all_linear_alone(targets: tuple[str, ...]) -> tuple[str, ...]:
    if ALL_LINEAR in targets and len(targets) > 1:
        raise ValueError(f"{ALL_LINEAR} means all linear layers: name no others with it")
    return targets


class LoraHyperparameters(Record):
    """Hyperparameters of a LoRA training: all that a bid may state and an executor must support."""

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
        AfterValidator(_all_linear_alone),
        BeforeValidator(_listed),
    ] = ("q_proj", "v_proj")
    """Layers that get an adapter: those whose dotted names equal or end with one of these (the rule of PEFT).
    `all-linear` alone, with or without a list, means all linear layers but the output head."""
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
    """Seed of initial weights, data order and dropout masks."""

    @property
    def is_all_linear(self) -> bool:
        """Whether all linear layers but the output head get an adapter."""
        return self.target_modules == (ALL_LINEAR,)


class LoraWorkload(Workload):
    """A number of samples of a dataset to train into an adapter of the zone's base model (section 2.1)."""

    kind: Literal["lora"] = "lora"
    work_samples: PositiveSamples
    """Number of samples to train (M_i)."""
    dataset: Dataset
    hyperparameters: LoraHyperparameters = LoraHyperparameters()
    memory_gib: Gib | None = None
    """Memory of the task (r_i); from the zone's throughput table if absent."""
    speed_samples_per_s: Annotated[dict[Identifier, SamplesPerSecond], Field(max_length=16)] | None = None
    """Speed by GPU type (s_ik); from the zone's throughput table if absent."""
    needs_preprocessing: bool = False
    """Whether a labour vendor must prepare the data first (f_i)."""

    @property
    def total_samples(self) -> int:
        """All of the work."""
        return self.work_samples
