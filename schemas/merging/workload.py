"""The workload of a fine-tuning job that may be merged with another, and its terms (Ymir, Table 1)."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Identifier, Record, RelativePath
from schemas.kind import Terms, Workload
from schemas.lora import Dataset, LoraHyperparameters

MAX_ITERATIONS = 10_000_000
MAX_GPUS = 1_024
LEAST_ACCURACY = 1e-3
"""Of a target: less is met by chance."""

Iterations = Annotated[int, Field(ge=0, le=MAX_ITERATIONS)]
"""Optimizer steps of a job."""
Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]
Accuracy = Annotated[float, Field(ge=0, le=1)]
"""The fraction of validation tokens, of those that bear loss, that are predicted right; under a classifier,
that of validation records."""


class TuningHyperparameters(LoraHyperparameters):
    """What to train, and how, on however many GPUs: the global batch never changes."""

    batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Sequences in an optimizer step, of all GPUs together (M_i). How many of them one GPU takes at a time is
    chosen to fit its memory; the rest is accumulated."""
    frozen_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """So many of the first layers get no adapter (l)."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass rather than kept (ckpt)."""

    def needed_alike(self, mode: Literal["temporal", "spatial"]) -> dict[str, Any]:
        """Fields that jobs which are merged must have in common, since they share an adapter; in a shared run
        (`spatial`), how it is computed too. The order of modules makes no difference."""
        alike: dict[str, Any] = {
            "rank": self.rank,
            "alpha": self.alpha,
            "target_modules": sorted(self.target_modules),
            "frozen_layers": self.frozen_layers,
        }
        if mode == "spatial":
            alike["gradient_checkpointing"] = self.gradient_checkpointing
        return alike


class Target(Record):
    """When a job is done: at an accuracy, or after so many iterations, whichever comes first."""

    accuracy: Annotated[float, Field(ge=LEAST_ACCURACY, le=1)] | None = None
    """On the validation data, see `Accuracy`; None where only iterations count."""
    most_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]


class TuningWorkload(Workload):
    """Fine-tuning of the zone's base model on one dataset until a target is met (Table 1).

    Jobs with equal `dataset` and `validation_path` are of the same task.
    """

    kind: Literal["tuning"] = "tuning"
    model: Identifier
    """The base model: the zone's."""
    dataset: Dataset
    """Training data (D_i)."""
    validation_path: RelativePath | None = None
    """JSONL file below the executors' dataset root, like the training data: what accuracy is measured on.
    Needed where the target is an accuracy, and by jobs that share."""
    hyperparameters: TuningHyperparameters = TuningHyperparameters()
    target: Target
    sharing: bool = True
    """Whether its weights may be given to other jobs, and theirs to it. A job that does not share is never
    merged."""
    gpus: Gpus = 1
    """What its user asks for. Only schemes that never change a job's size go by it."""
    pipeline: bool = False
    """Whether the model is cut into stages over GPUs. Such a job gets whole multiples of four GPUs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.validation_path is None and self.target.accuracy is not None:
            raise ValueError("target.accuracy needs validation_path, the data that accuracy is measured on")
        if self.validation_path is None and self.sharing:
            raise ValueError(
                "a job that shares needs validation_path, to know whether a merge helps: give it, or set "
                "sharing to false"
            )
        return self

    @property
    def total_samples(self) -> int:
        """Of all iterations that it may have; it may meet its target before."""
        return self.target.most_iterations * self.hyperparameters.batch_size

    @property
    def iterations_per_epoch(self) -> int:
        """Optimizer steps in which all of the training data is used once, the last one perhaps in part."""
        return -(-self.dataset.samples // self.hyperparameters.batch_size)


class MergingTerms(Terms):
    """No bid and no deadline: the job waits until it has its share of the GPUs."""

    kind: Literal["merging"] = "merging"
