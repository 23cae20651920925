"""A kind of jobs, of equal data and hyperparameters: the results of its profile run and of its jobs."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from schemas.facts import Facts
from schemas.merging.estimates import MERGE_MODES, KindFacts, MergeMode
from schemas.merging.reports import TaskProfiled
from schemas.merging.workload import TuningWorkload

_DIGEST_BYTES = 8
_FALLS_FROM = 3
"""Least losses of a trace that is checked."""


def kind_key(workload: TuningWorkload) -> str:
    """Return a digest of everything that affects a job's training alone, besides its bound on iterations."""
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
    """Return a digest of a job's training and validation data, which define its task."""
    return _digest([workload.dataset.path, workload.validation_path])


def _digest(parts: Sequence[Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def fault_of(
    report: TaskProfiled, compared: Literal["embedding", "features"], length: int | None
) -> Facts | None:
    """Return the fault of a profile; None if it is sound.

    Args:
        compared: the field that similarity is computed from.
        length: length of that field in earlier profiles; None before the first.
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
    """Data of a kind of jobs."""

    key: str
    task: str
    batch_size: int
    dataset_samples: int
    target_accuracy: float | None
    pipeline: bool
    """Whether its jobs are cut into stages over GPUs."""
    forms: dict[MergeMode, str]
    """Digest by mode of everything that merged jobs must have in common."""
    jobs: int = 0
    """Number of live jobs."""
    most_iterations: int = 1
    """Most iterations of any of its jobs."""
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
    """Estimate from the profile; None before there is one."""
    finished: int = 0
    """Number of jobs that ran alone until they were done."""
    finished_iterations: float = 0.0
    """Mean iterations of finished jobs."""
    finished_accuracies: int = 0
    """Number of finished jobs with an accuracy."""
    finished_accuracy: float = 0.0
    """Mean of their best accuracies."""
    scale: float = 1.0
    """Factor of its passes on those of its shape, since data differ; see `StepTimeTable.scale_of`."""
    used: int = field(default=0)
    """Number of its last use, counted over all kinds: the least recently used has the smallest."""
    watched: int = 0
    """Number of jobs that were evaluated alone after the watched epochs."""
    watched_accuracy: float = 0.0
    """Mean of their best accuracies by then."""

    @classmethod
    def of(cls, workload: TuningWorkload) -> Self:
        """Return the kind of a workload, without any data yet."""
        return cls(
            kind_key(workload),
            task_key(workload),
            workload.hyperparameters.batch_size,
            workload.dataset.samples,
            workload.target.accuracy,
            workload.pipeline,
            {mode: _digest([workload.hyperparameters.needed_alike(mode)]) for mode in MERGE_MODES},
        )

    @property
    def iterations_per_epoch(self) -> int:
        """Steps of one epoch."""
        return -(-self.dataset_samples // self.batch_size)

    @property
    def expected_iterations(self) -> float | None:
        """Expected iterations of a job alone: the mean of finished jobs, or else the estimate; None if
        unknown."""
        return self.finished_iterations if self.finished else self.iterations

    @property
    def accuracy_at_end(self) -> float | None:
        """Mean of the best accuracies of finished jobs; None if unknown."""
        return self.finished_accuracy if self.finished_accuracies else None

    @property
    def accuracy_when_watched(self) -> float | None:
        """Mean of the best accuracies of jobs alone after the watched epochs; None if unknown."""
        return self.watched_accuracy if self.watched else None

    def keep_profile(self, report: TaskProfiled, embedding: Sequence[float]) -> None:
        """Keep a sound profile."""
        self.is_usable = True
        self.losses, self.embedding = report.losses, tuple(embedding)
        self.note_profile(report)

    def note_profile(self, report: TaskProfiled) -> None:
        """Keep the figures of a profile, sound or not."""
        self.is_profiled = True
        self.loader_s, self.memory_gib = report.loader_s, report.memory_gib
        self.accuracy_before = report.accuracy
        self.accuracy_after_epoch = report.accuracy_after_epoch

    def forget_profile(self) -> None:
        """Drop all of the profile but its figures; jobs of this kind run unmerged."""
        self.losses = self.embedding = ()
        self.is_usable = False

    def note_watched(self, accuracy: float) -> None:
        """Count the evaluation of a job alone after the watched epochs."""
        self.watched += 1
        self.watched_accuracy += (accuracy - self.watched_accuracy) / self.watched

    def note_finished(self, iterations: int, accuracy: float | None) -> None:
        """Count a job that ran alone until it was done."""
        self.finished += 1
        self.finished_iterations += (iterations - self.finished_iterations) / self.finished
        if accuracy is not None:
            self.finished_accuracies += 1
            self.finished_accuracy += (accuracy - self.finished_accuracy) / self.finished_accuracies

    def facts(self) -> KindFacts:
        """Return the data for a solver."""
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
            finished_accuracy=self.accuracy_at_end,
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
            "finished_accuracy": self.accuracy_at_end,
            "watched": self.watched,
            "watched_accuracy": self.accuracy_when_watched,
        }
