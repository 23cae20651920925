"""Measured outcomes of each pair of tasks: the ground truth for the estimator, and the half of it that a zone
may have.

A workload runs each task in one setting, and its target is the best metric of its own curve there. So

    G = best of ten epochs merged / best of ten epochs alone - 1    (Eq. 1)

and a merge meets the target exactly if G is not negative. Tasks without a workload are left out, because the
setting of their merges is unknown.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from bench.merging.curves import Curve
from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.measured_truth import workload_of
from schemas.merging.estimates import MAX_OUTCOMES, PastMerge
from solvers.merging.pairs import Candidate, GainForecast, GainOutcome, MergeMode, forecast_gains
from streams.policies.merging.kind_of_jobs import task_key

MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


@dataclass(frozen=True)
class KnownTask:
    """A task as a workload runs it."""

    name: str
    samples: int
    batch_size: int
    target: float
    curve: Curve
    """Curve of the task alone."""
    epochs: int
    """Epochs until the target is met alone."""


@dataclass(frozen=True)
class KnownMerge:
    """A measured merge, from its receiver's side."""

    candidate: Candidate
    gain: float
    epochs: int | None
    """Epochs until the receiver's target is met; None if it never is."""
    own_epochs: int
    """Epochs until then alone."""

    @property
    def tasks(self) -> frozenset[str]:
        return frozenset((self.candidate.donor, self.candidate.receiver))


def known_tasks(profiles: Profiles, jobs: Iterable[WorkloadJob]) -> dict[str, KnownTask]:
    """Return the tasks of a workload by name, in order of names.

    Raises:
        LookupError: a job's curve was not measured, or its samples are unknown.
        ValueError: jobs of a task differ in setting or target, or a target was never met.
    """
    found: dict[str, tuple[WorkloadJob, KnownTask]] = {}
    for job in jobs:
        if job.task in found:
            first = found[job.task][0]
            if (job.setting, job.target, job.batch_size) != (first.setting, first.target, first.batch_size):
                raise ValueError(f"{job.name} differs from {first.name} in setting, target or batch size")
            continue
        if job.task not in profiles.samples:
            raise LookupError(f"samples of {job.task!r} are unknown: add them to the folder's samples.csv")
        curve = profiles.single(job.task, job.setting)
        epochs = curve.first_reaching(job.target)
        if epochs is None:
            raise ValueError(f"the target {job.target:g} of {job.name} is not met by its own curve")
        samples = profiles.samples[job.task]
        task = KnownTask(job.task, samples, job.batch_size, job.target, curve, epochs)
        found[job.task] = job, task
    return {name: found[name][1] for name in sorted(found)}


def known_merges(profiles: Profiles, tasks: Mapping[str, KnownTask]) -> list[KnownMerge]:
    """Return the measured pairs of these tasks; each spatial merge twice, once per receiver."""
    merges = []
    for mode in MODES:
        for donor in tasks.values():
            for receiver in tasks.values():
                curve = profiles.curves.merged(donor.name, receiver.name, mode)
                if curve is None:
                    continue
                merges.append(
                    KnownMerge(
                        Candidate(
                            donor.name,
                            receiver.name,
                            mode,
                            donor.samples,
                            receiver.samples,
                            donor_target=donor.target,
                            receiver_target=receiver.target,
                        ),
                        gain=curve.best / receiver.curve.best - 1.0,
                        epochs=curve.first_reaching(receiver.target),
                        own_epochs=receiver.epochs,
                    )
                )
    return merges


def visible(merges: Sequence[KnownMerge], target: KnownMerge) -> list[KnownMerge]:
    """Return the merges that an estimator may use to forecast one of them: none of the same two tasks, in
    either direction or mode."""
    return [other for other in merges if other.tasks != target.tasks]


def foretold_gains(merges: Sequence[KnownMerge]) -> list[GainForecast]:
    """Forecast the gain of each merge, from the merges that it may use. Merges of one pair share a fit."""
    by_pair: dict[frozenset[str], list[int]] = {}
    for index, merge in enumerate(merges):
        by_pair.setdefault(merge.tasks, []).append(index)
    found: dict[int, GainForecast] = {}
    for indices in by_pair.values():
        seen = [GainOutcome(other.candidate, other.gain) for other in visible(merges, merges[indices[0]])]
        answers = forecast_gains(seen, [merges[index].candidate for index in indices])
        found |= dict(zip(indices, answers, strict=True))
    return [found[index] for index in range(len(merges))]


def is_known(one: str, other: str) -> bool:
    """Return whether the pair is in the known half, by a hash of both names: in either order and both modes,
    or never."""
    names = "/".join(sorted((one, other)))
    return hashlib.blake2b(f"known/{names}".encode(), digest_size=8).digest()[0] % 2 == 0


def past_merges(profiles: Profiles, jobs: Sequence[WorkloadJob]) -> tuple[PastMerge, ...]:
    """Return the outcomes of all measured merges of the known half, with each receiver in the setting of its
    workload: the initial knowledge of a zone."""
    by_task = {job.task: job for job in reversed(jobs)}
    found = (
        _past(profiles, mode, by_task[donor], by_task[receiver])
        for mode in MODES
        for donor, receiver in permutations(sorted(by_task), 2)
        if is_known(donor, receiver)
    )
    return tuple(past for past in found if past is not None)[:MAX_OUTCOMES]


def _past(profiles: Profiles, mode: MergeMode, donor: WorkloadJob, receiver: WorkloadJob) -> PastMerge | None:
    curve = profiles.curves.merged(donor.task, receiver.task, mode)
    if curve is None:
        return None
    donor_workload, receiver_workload = workload_of(donor, profiles), workload_of(receiver, profiles)
    alone = profiles.single(receiver.task, receiver.setting)
    own, epochs = alone.first_reaching(alone.best), curve.first_reaching(alone.best)
    assert own is not None
    return PastMerge(
        mode=mode,
        donor=task_key(donor_workload),
        donor_samples=donor_workload.dataset.samples,
        receiver=task_key(receiver_workload),
        receiver_samples=receiver_workload.dataset.samples,
        score=None,
        gain=(curve.best - alone.best) / alone.best,
        target=min(alone.best, 1.0),
        best=min(max(curve.best, 0.0), 1.0),
        epochs=None if epochs is None else float(epochs),
        own_epochs=float(own),
    )
