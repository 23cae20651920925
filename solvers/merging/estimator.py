"""YmirEstimator: what the task merger is told of jobs and of their merges (Ymir, section 4, Figure 7).

Three parts, of which each can be replaced: transferability and gain (`transferability`, `gain`), iterations
(`loss_curve`, `iterations`, `accuracy_target`, `merged_target`), and time (`lookup_table`, which the cell
keeps itself). It fits curves and regressions, so it runs in a solver process, and a pure function of what
it is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from solvers.merging.accuracy_target import Evaluation, ForetoldEpochs, TargetedJob, epochs_to_target
from solvers.merging.gain import GainModel, GainOutcome, PairEffects
from solvers.merging.iterations import iterations_of_epochs, iterations_to_converge
from solvers.merging.loss_curve import CurveFit, FittedCurve, UnusableTrace, fit_loss_curve
from solvers.merging.merged_target import ForetoldTarget, MergeQuestion, MergeResult, foretell_targets
from solvers.merging.pairs import Candidate, MergeMode
from solvers.merging.transferability import Task2Vec, Transferability, spatial_score


@dataclass(frozen=True)
class ProfiledJob:
    """A job, and what its profile run and its training have shown."""

    job_id: str
    task: str
    """Jobs with the same data are of one task."""
    setting: str
    """Hyperparameters that change the curve, in any form."""
    samples: int
    """D."""
    batch_size: int
    """M."""
    most_iterations: int
    target: float | None
    """Accuracy; None for a job that ends after `most_iterations` and nothing else."""
    losses: tuple[float, ...] = ()
    """Of the profile run's iterations."""
    embedding: tuple[float, ...] = ()
    """What `transferability` compares; empty if it was not measured."""
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def most_epochs(self) -> float:
        return self.most_iterations / -(-self.samples // self.batch_size)

    @property
    def targeted(self) -> TargetedJob | None:
        if self.target is None:
            return None
        return TargetedJob(self.task, self.setting, self.target, self.most_epochs, self.evaluations)


class JobEstimate(NamedTuple):
    iterations: int
    """K, from the first one on."""
    basis: Literal["met", "same_setting", "same_task", "other_tasks", "loss_curve", "limit"]
    curve: FittedCurve | UnusableTrace
    """Of its losses; unusable if the profile run shows no fall, and then only the job's limit is sure."""


class MergeEstimate(NamedTuple):
    """A merge, seen from its receiver."""

    gain: float
    """G."""
    gain_probability: float
    """Of G >= 0."""
    score: float | None
    """S; None where a job has no embedding."""
    target_probability: float
    """That the receiver meets its target at all."""
    iterations: int
    """Of the receiver, if it does."""
    saved_iterations: float
    """Expected, with the cost of undoing a merge that fails; below zero for one that is better not made."""


@dataclass(frozen=True)
class YmirEstimator:
    transferability: Transferability = field(default_factory=Task2Vec)
    gains: GainModel = field(default_factory=PairEffects)
    fit: CurveFit = fit_loss_curve

    def jobs(self, jobs: Sequence[ProfiledJob], finished: Sequence[TargetedJob]) -> dict[str, JobEstimate]:
        """How many iterations jobs need alone.

        Args:
            jobs: with distinct ids.
            finished: jobs that have run alone on the same base model.

        Returns:
            by job id.
        """
        return {job.job_id: self._alone(job, finished) for job in jobs}

    def merges(
        self,
        asked: Sequence[tuple[ProfiledJob, ProfiledJob, MergeMode]],
        alone: Mapping[str, JobEstimate],
        outcomes: Sequence[GainOutcome],
        results: Sequence[MergeResult],
    ) -> list[MergeEstimate]:
        """What merges bring their receivers. Pairs of the same tasks are computed once, so asking for many
        jobs of few tasks costs little.

        Args:
            asked: donor, receiver and mode. Of a spatial merge ask for both directions.
            alone: of all jobs asked about.
            outcomes: gains of merges that were made, oldest first.
            results: when merges met their targets, oldest first.

        Raises:
            ValueError: embeddings differ in length.
        """
        candidates: dict[tuple[str, str, MergeMode], Candidate] = {}
        for donor, receiver, mode in asked:
            key = donor.task, receiver.task, mode
            if key not in candidates:
                score = self._score(donor, receiver, mode)
                candidates[key] = Candidate(
                    *key, donor.samples, receiver.samples, score, donor.target, receiver.target
                )
        merges = list(candidates.values())
        gains = dict(zip(candidates, self.gains.foretell(outcomes, merges), strict=True))
        # Epochs of the merge per epoch of the job alone.
        targets = dict(
            zip(candidates, foretell_targets(results, [MergeQuestion(m, 1.0) for m in merges]), strict=True)
        )
        estimates = []
        for donor, receiver, mode in asked:
            key = donor.task, receiver.task, mode
            gain, target = gains[key], targets[key]
            own = alone[receiver.job_id]
            ratio = target.epochs if results else _ratio_by_loss(own, receiver, gain.gain)
            per_epoch = -(-receiver.samples // receiver.batch_size)
            told = ForetoldTarget(
                target.probability, own.iterations / per_epoch * ratio, own.iterations / per_epoch
            )
            estimates.append(
                MergeEstimate(
                    gain=gain.gain,
                    gain_probability=gain.probability,
                    score=candidates[key].score,
                    target_probability=told.probability,
                    iterations=min(max(1, round(own.iterations * ratio)), receiver.most_iterations),
                    saved_iterations=told.saved_epochs * per_epoch,
                )
            )
        return estimates

    def _alone(self, job: ProfiledJob, finished: Sequence[TargetedJob]) -> JobEstimate:
        curve = self.fit(job.losses)
        targeted = job.targeted
        if targeted is None:
            return JobEstimate(job.most_iterations, "limit", curve)
        told: ForetoldEpochs = epochs_to_target(targeted, finished)
        if told.basis != "limit":
            iterations = iterations_of_epochs(told.epochs, job.batch_size, job.samples)
            return JobEstimate(min(iterations, job.most_iterations), told.basis, curve)
        if isinstance(curve, FittedCurve):
            return JobEstimate(iterations_to_converge(curve.curve, job.most_iterations), "loss_curve", curve)
        return JobEstimate(job.most_iterations, "limit", curve)

    def _score(self, donor: ProfiledJob, receiver: ProfiledJob, mode: MergeMode) -> float | None:
        if not donor.embedding or not receiver.embedding:
            return None
        if mode == "spatial":
            return spatial_score(self.transferability, donor.embedding, receiver.embedding)
        return self.transferability.score(donor.embedding, receiver.embedding)


def _ratio_by_loss(alone: JobEstimate, receiver: ProfiledJob, gain: float) -> float:
    """Before any merge has finished: what Eq. 2 makes of the transferred loss, over what it makes of the
    own."""
    if not isinstance(alone.curve, FittedCurve):
        return 1.0
    curve, most = alone.curve.curve, receiver.most_iterations
    return iterations_to_converge(curve, most, gain) / iterations_to_converge(curve, most)
