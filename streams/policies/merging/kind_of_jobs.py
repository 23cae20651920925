"""Jobs of equal data and hyperparameters: what their profile run has shown, and what came of them."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from schemas.facts import Facts
from schemas.merging.estimates import MERGE_MODES, KindFacts, MergeMode
from schemas.merging.reports import ProfileReported
from schemas.merging.workload import TuningWorkload
from solvers.merging.lookup_table import Configuration

_DIGEST_BYTES = 8
_FALLS_FROM = 3
"""A trace is looked at from so many losses on."""


def kind_key(workload: TuningWorkload) -> str:
    """Digest of what decides how a job of this workload fares alone, its bound on iterations left out."""
    hyperparameters = workload.hyperparameters.model_dump(mode="json", exclude={"seed"})
    return _digest(
        [
            task_key(workload),
            workload.dataset.samples,
            hyperparameters,
            workload.target.accuracy,
            workload.pipeline,
        ]
    )


def task_key(workload: TuningWorkload) -> str:
    """Digest of what makes a task: a job's training and validation data."""
    return _digest([workload.dataset.path, workload.validation_path])


def _digest(parts: Sequence[Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def fault_of(
    report: ProfileReported, compared: Literal["embedding", "features"], length: int | None
) -> Facts | None:
    """Why a profile is of no use; None if it is of some.

    Args:
        compared: the field by which similarity is judged.
        length: of that field in the profiles before; None before the first.
    """
    values = getattr(report, compared)
    if not values:
        return {"case": "missing", "field": compared}
    if length is not None and len(values) != length:
        return {"case": "other_length", "field": compared, "values": len(values), "known_values": length}
    if not any(values):
        return {"case": "all_zero", "field": compared}
    third = len(report.losses) // 3
    if len(report.losses) < _FALLS_FROM:
        return {"case": "few_losses", "losses": len(report.losses), "least_losses": _FALLS_FROM}
    first = math.fsum(report.losses[:third]) / third
    last = math.fsum(report.losses[-third:]) / third
    if last >= first:
        return {"case": "losses_do_not_fall", "first_loss": first, "last_loss": last}
    return None


@dataclass
class KindOfJobs:
    """What is known of them."""

    key: str
    task: str
    batch_size: int
    dataset_samples: int
    target_accuracy: float | None
    configuration: Configuration
    """What makes its steps faster or slower, beside its batch."""
    forms: dict[MergeMode, str]
    """By mode, a digest of what jobs that are merged so must have in common."""
    jobs: int = 0
    """That are not over."""
    most_iterations: int = 1
    """Of any of its jobs."""
    is_profiled: bool = False
    is_usable: bool = False
    """Whether its jobs may be merged: the profile is sound."""
    losses: tuple[float, ...] = ()
    embedding: tuple[float, ...] = ()
    accuracy_before: float | None = None
    accuracy_after_epoch: float | None = None
    loader_s: float = 0.0
    memory_gib: float = 0.0
    iterations: int | None = None
    """Foretold from the profile; None before it is."""
    finished: int = 0
    """Jobs that ran alone until they were done."""
    finished_iterations: float = 0.0
    """Of these, the mean."""
    finished_accuracies: int = 0
    """How many of them have measured an accuracy."""
    finished_accuracy: float = 0.0
    """The mean of the best ones."""
    scale: float = 1.0
    """Its steps take so much longer than the lookup table says."""
    used: int = field(default=0)
    """Counts up each time that any kind is used: the smallest was not used for longest."""
    watched: int = 0
    """Jobs that were seen alone after the epochs in which merges are watched."""
    watched_accuracy: float = 0.0
    """Of these, the mean of the best so far."""

    @classmethod
    def of(cls, workload: TuningWorkload) -> Self:
        """The kind of a job, of which nothing is known."""
        return cls(
            kind_key(workload),
            task_key(workload),
            workload.hyperparameters.batch_size,
            workload.dataset.samples,
            workload.target.accuracy,
            Configuration(
                workload.hyperparameters.frozen_layers,
                workload.hyperparameters.gradient_checkpointing,
                workload.pipeline,
            ),
            {mode: _digest([workload.hyperparameters.needed_alike(mode)]) for mode in MERGE_MODES},
        )

    @property
    def pipeline(self) -> bool:
        """Whether its jobs are cut into stages over GPUs."""
        return self.configuration.pipeline

    @property
    def iterations_per_epoch(self) -> int:
        """Steps in which all of the data is used once."""
        return -(-self.dataset_samples // self.batch_size)

    @property
    def expected_iterations(self) -> float | None:
        """How many a job needs that runs alone: the mean of those that did, or else as foretold; None where
        nothing says."""
        return self.finished_iterations if self.finished else self.iterations

    def take(self, report: ProfileReported, embedding: Sequence[float]) -> None:
        """Keep what a profile run has shown."""
        self.is_usable = True
        self.losses, self.embedding = report.losses, tuple(embedding)
        self.note_profile(report)

    def note_profile(self, report: ProfileReported) -> None:
        """Keep what does not depend on whether the profile is sound."""
        self.is_profiled = True
        self.loader_s, self.memory_gib = report.loader_s, report.memory_gib
        self.accuracy_before = report.accuracy
        self.accuracy_after_epoch = report.accuracy_after_epoch

    def forget_profile(self) -> None:
        """Keep no more of the profile than its figures; jobs of this kind run unmerged."""
        self.losses = self.embedding = ()
        self.is_usable = False

    def note_watched(self, accuracy: float) -> None:
        """A job that runs alone was evaluated after the epochs in which merges are watched."""
        self.watched += 1
        self.watched_accuracy += (accuracy - self.watched_accuracy) / self.watched

    def note_finished(self, iterations: int, accuracy: float | None) -> None:
        """A job that ran alone is done."""
        self.finished += 1
        self.finished_iterations += (iterations - self.finished_iterations) / self.finished
        if accuracy is not None:
            self.finished_accuracies += 1
            self.finished_accuracy += (accuracy - self.finished_accuracy) / self.finished_accuracies

    def facts(self) -> KindFacts:
        """As a solver is told."""
        return KindFacts(
            task=self.task,
            dataset_samples=self.dataset_samples,
            losses=self.losses,
            iterations_per_epoch=self.iterations_per_epoch,
            most_iterations=self.most_iterations,
            accuracy_before=self.accuracy_before,
            accuracy_after_epoch=self.accuracy_after_epoch,
            target_accuracy=self.target_accuracy,
            finished_iterations=self.finished_iterations if self.finished else None,
            finished_accuracy=self.finished_accuracy if self.finished_accuracies else None,
        )

    def describe(self) -> dict[str, Any]:
        """Describe it for an operator, in values that JSON has: figures, no traces or embeddings."""
        return {
            "task": self.task,
            "jobs": self.jobs,
            "is_profiled": self.is_profiled,
            "is_usable": self.is_usable,
            "iterations": self.iterations,
            "finished": self.finished,
            "finished_iterations": self.finished_iterations,
            "finished_accuracy": self.finished_accuracy if self.finished_accuracies else None,
            "watched": self.watched,
            "watched_accuracy": self.watched_accuracy if self.watched else None,
        }

    def to_state(self) -> list[Any]:
        """Of types that msgpack writes."""
        return list(vars(self).values())

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Self:
        """The kind that `state` was taken of."""
        kind = cls(*state)
        kind.losses, kind.embedding = tuple(kind.losses), tuple(kind.embedding)
        kind.configuration = Configuration(*kind.configuration)
        return kind
