"""Outcomes of half of the measured pairs, which a zone may have before its first merge."""

import hashlib
from collections.abc import Sequence
from itertools import permutations

from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.measured_truth import workload_of
from schemas.merging.estimates import MAX_OUTCOMES, PastMerge
from solvers.merging.pairs import MergeMode
from streams.policies.merging.kind_of_jobs import task_key

MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


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
