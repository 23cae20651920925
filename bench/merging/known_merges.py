"""What a zone may know of merges before its first: outcomes of half of the measured pairs."""

import hashlib
from collections.abc import Sequence
from itertools import permutations

from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.measured_truth import workload_of
from schemas.merging.estimates import MAX_OUTCOMES, MergeMode, PastMerge
from streams.policies.merging.kind_of_jobs import task_key

_MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


def is_known(one: str, other: str) -> bool:
    """Whether the pair is of the half that is known, by a hash of both names: in either order, in both modes,
    or never."""
    names = "/".join(sorted((one, other)))
    return hashlib.blake2b(f"known/{names}".encode(), digest_size=8).digest()[0] % 2 == 0


def known_merges(profiles: Profiles, jobs: Sequence[WorkloadJob]) -> tuple[PastMerge, ...]:
    """What came of all measured merges of the known half, each receiver trained as the workload trains its
    task."""
    by_task = {job.task: job for job in reversed(jobs)}
    found = (
        _past(profiles, mode, by_task[donor], by_task[receiver])
        for mode in _MODES
        for donor, receiver in permutations(sorted(by_task), 2)
        if is_known(donor, receiver)
    )
    return tuple(past for past in found if past is not None)[:MAX_OUTCOMES]


def _past(profiles: Profiles, mode: MergeMode, donor: WorkloadJob, receiver: WorkloadJob) -> PastMerge | None:
    curve = profiles.curves.merged(donor.task, receiver.task, mode)
    if curve is None:
        return None
    giver, taker = workload_of(donor, profiles), workload_of(receiver, profiles)
    alone = profiles.single(receiver.task, receiver.setting)
    own, epochs = alone.first_reaching(alone.best), curve.first_reaching(alone.best)
    assert own is not None
    return PastMerge(
        mode=mode,
        donor=task_key(giver),
        donor_samples=giver.dataset.samples,
        receiver=task_key(taker),
        receiver_samples=taker.dataset.samples,
        score=None,
        gain=(curve.best - alone.best) / alone.best,
        target=min(alone.best, 1.0),
        best=min(max(curve.best, 0.0), 1.0),
        epochs=None if epochs is None else float(epochs),
        own_epochs=float(own),
    )
