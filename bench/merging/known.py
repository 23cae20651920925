"""What the measured curves say of each pair of tasks: the truth that the estimator is held against.

A workload runs each task in one setting, and its target is there the best metric of its own curve. So

    G = best of ten epochs merged / best of ten epochs alone - 1    (Eq. 1)

and a merge meets the target exactly if G is not negative. Tasks that no workload has are left out: in which
setting they were merged is not known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.merging.curves import Curve
from bench.merging.measured import Profiles, WorkloadJob
from solvers.merging.pairs import Candidate, MergeMode

MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


@dataclass(frozen=True)
class KnownTask:
    """A task as a workload runs it."""

    name: str
    samples: int
    batch_size: int
    target: float
    curve: Curve
    """Alone."""
    epochs: int
    """Until the target is met alone."""

    @property
    def iterations_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)


@dataclass(frozen=True)
class KnownMerge:
    """A merge that was measured, seen from its receiver."""

    candidate: Candidate
    gain: float
    target: float
    best: float
    epochs: int | None
    """Until the receiver's target is met; None if it never is."""
    own_epochs: int
    """The same alone."""

    @property
    def tasks(self) -> frozenset[str]:
        return frozenset((self.candidate.donor, self.candidate.receiver))


def known_tasks(profiles: Profiles, jobs: Iterable[WorkloadJob]) -> dict[str, KnownTask]:
    """By name, in its order.

    Raises:
        LookupError: a job's curve was not measured, or its samples are not known.
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
            raise LookupError(f"samples of {job.task!r} are not known: name them in the folder's samples.csv")
        curve = profiles.single(job.task, job.setting)
        epochs = curve.first_reaching(job.target)
        if epochs is None:
            raise ValueError(f"the target {job.target:g} of {job.name} is not met by its own curve")
        samples = profiles.samples[job.task]
        task = KnownTask(job.task, samples, job.batch_size, job.target, curve, epochs)
        found[job.task] = job, task
    return {name: found[name][1] for name in sorted(found)}


def known_merges(profiles: Profiles, tasks: Mapping[str, KnownTask]) -> list[KnownMerge]:
    """Of all measured pairs of these tasks; each spatial merge twice, once per receiver."""
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
                        target=receiver.target,
                        best=curve.best,
                        epochs=curve.first_reaching(receiver.target),
                        own_epochs=receiver.epochs,
                    )
                )
    return merges
