"""The workload of a fine-tuning job that may be merged with another, and its terms (Ymir, Table 1)."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Identifier, Record, RelativePath
from schemas.kind import Terms, Workload
from schemas.lora import Dataset, LoraHyperparameters

MAX_ITERATIONS = 10_000_000
MAX_GPUS = 1_024
LEAST_ACCURACY = 1e-3
"""Least target accuracy: lower ones are met by chance."""

Iterations = Annotated[int, Field(ge=0, le=MAX_ITERATIONS)]
"""Optimizer steps of a job."""
Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]
Accuracy = Annotated[float, Field(ge=0, le=1)]
"""Fraction of correctly predicted validation tokens among those that bear loss; for a classifier, of
validation records."""


class TuningHyperparameters(LoraHyperparameters):
    """Hyperparameters of the training, for any number of GPUs: the global batch never changes."""

    batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Sequences in an optimizer step, of all GPUs together (M_i). The micro-batch of a GPU is chosen to fit
    its memory; the rest is accumulated."""
    frozen_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Number of first layers without an adapter (l)."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass rather than kept (ckpt)."""

    def needed_alike(self, mode: Literal["temporal", "spatial"]) -> dict[str, Any]:
        """Return the fields that must be equal in merged jobs: those of the adapter that they share, and in a
        shared run (`spatial`) those of its computation too. The order of modules is irrelevant."""
        alike: dict[str, Any] = {
            "rank": self.rank,
            "alpha": self.alpha,
            "target_modules": sorted(self.target_modules),
            "frozen_layers": self.frozen_layers,
        }
        if mode == "spatial":
            alike["gradient_checkpointing"] = self.gradient_checkpointing
        return alike


class TrainingTarget(Record):
    """End of a job: at an accuracy, or after a number of iterations, whichever is first."""

    accuracy: Annotated[float, Field(ge=LEAST_ACCURACY, le=1)] | None = None
    """Accuracy on the validation data, see `Accuracy`; None if only iterations count."""
    most_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]


class TuningWorkload(Workload):
    """Fine-tuning of the zone's base model on one dataset until a target is met (Table 1).

    Jobs with equal `dataset` and `validation_path` have the same task.
    """

    kind: Literal["tuning"] = "tuning"
    model: Identifier
    """Base model, which must be the zone's."""
    dataset: Dataset
    """Training data (D_i)."""
    validation_path: RelativePath | None = None
    """JSONL file below the executors' dataset root, on which accuracy is measured. Required for a target
    accuracy, and for jobs that share."""
    hyperparameters: TuningHyperparameters = TuningHyperparameters()
    target: TrainingTarget
    sharing: bool = True
    """Whether it may be merged with other jobs, which then share weights with it."""
    # Omitted if it is the default, so that jobs submitted before it was added keep their bytes.
    reusable: Annotated[bool, Field(exclude_if=lambda reusable: not reusable)] = False
    """Whether later jobs may start from its adapter once it is done, also those of other users."""
    gpus: Gpus = 1
    """Number of GPUs requested by the user. Only schemes that never change a job's size use it."""
    pipeline: bool = False
    """Whether the model is cut into stages over GPUs. Such a job gets whole multiples of four GPUs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.validation_path is None and self.target.accuracy is not None:
            raise ValueError("target.accuracy needs validation_path, the data that accuracy is measured on")
        if self.validation_path is None and self.sharing:
            raise ValueError(
                "a job that shares needs validation_path, to measure the effect of a merge: give it, or set "
                "sharing to false"
            )
        if self.reusable and not self.sharing:
            raise ValueError(
                "reusable needs sharing, since other jobs get its weights: set sharing to true, or leave "
                "reusable out"
            )
        return self

    @property
    def total_samples(self) -> int:
        """Samples of all allowed iterations; the job may meet its target before."""
        return self.target.most_iterations * self.hyperparameters.batch_size

    @property
    def iterations_per_epoch(self) -> int:
        """Number of optimizer steps for one pass over the training data, the last one possibly partial."""
        return -(-self.dataset.samples // self.hyperparameters.batch_size)


class MergingTerms(Terms):
    """No bid and no deadline: the job waits until it has its share of the GPUs."""

    kind: Literal["merging"] = "merging"
