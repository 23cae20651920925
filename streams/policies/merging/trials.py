"""Trials of merges: they show whether such merges pay, one at a time, within a budget.

Trials are the only merges without evidence. A trial costs at most the watched epochs of the jobs that learn
in it. It must be cheap compared with a mean job, and its cost and that of all undone merges together must be
a small share of the training of finished jobs (`Knowledge.may_try`). So the cost of trials is bounded for
every result.

The receiver of a temporal trial waits for its donor, so the donor is a job that is nearly done.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from streams.policies.merging.knowledge import Knowledge, Pair
from streams.policies.merging.tasks import Tasks
from streams.policies.merging.tuning_job import TuningJob

Part = Literal["none", "donor", "any"]


class MergeTrial(NamedTuple):
    """A merge of two specific jobs that the next plan may have."""

    pair: Pair
    """The mode and the kinds: a key of `Knowledge.transfers`."""
    donor: str
    receiver: str


def trials_of_plan(
    knowledge: Knowledge, tasks: Tasks, parts: Mapping[str, Part], watched_epochs: int
) -> list[MergeTrial]:
    """Return the trials under way, whose receivers wait for their donors, or else a new one.

    Args:
        parts: possible part in a merge of each job of the problem, by id.
        watched_epochs: epochs that a merge which does not pay trains in vain.
    """
    under_way = list(_trials_under_way(knowledge, tasks))
    if under_way:
        return under_way
    new = _cheapest_trial(knowledge, list(tasks.jobs.values()), parts, watched_epochs)
    return [] if new is None else [new]


def _trials_under_way(knowledge: Knowledge, tasks: Tasks) -> Iterator[MergeTrial]:
    for task in tasks.all.values():
        if task.follower is None:
            continue
        donor, receiver = (tasks.jobs[job_id] for job_id in task.job_ids)
        pair: Pair = ("temporal", donor.kind, receiver.kind)
        if receiver.merge is not None and receiver.merge.is_trial and pair in knowledge.transfers:
            yield MergeTrial(pair, donor.job_id, receiver.job_id)


def _cheapest_trial(
    knowledge: Knowledge, jobs: Sequence[TuningJob], parts: Mapping[str, Part], watched_epochs: int
) -> MergeTrial | None:
    """Return the cheapest new trial, in the mode with fewer known merges; None without a cheap one."""
    learning = {
        (job.merge.mode, job.kind)
        for job in jobs
        if job.merge is not None and job.merge.is_trial and not job.merge.is_donor
    }
    at_stake = sum(watched_epochs * knowledge.kinds[kind].dataset_samples for _, kind in learning)
    known = Counter(outcome.mode for outcome in knowledge.outcomes)
    fresh: dict[str, list[TuningJob]] = {}
    for job in jobs:
        if parts.get(job.job_id) == "any":
            fresh.setdefault(job.kind, []).append(job)
    leaving = _nearly_done(knowledge, jobs, parts)
    found: list[tuple[int, int, int, MergeTrial]] = []
    for pair, forecast in knowledge.transfers.items():
        mode, donor, receiver = pair
        receivers = fresh.get(receiver, [])
        if forecast.evidence != "trial" or not receivers:
            continue
        learners = {donor, receiver} if mode == "spatial" else {receiver}
        each = [watched_epochs * knowledge.kinds[kind].dataset_samples for kind in learners]
        costs = sum(each)
        if not knowledge.is_cheap(max(each)) or any((mode, kind) in learning for kind in learners):
            continue
        receiving = receivers[-1]
        if mode == "spatial":
            donors = [job for job in fresh.get(donor, []) if job is not receiving]
        else:
            donors = [job for job, left in leaving.get(donor, []) if job is not receiving and left <= costs]
        if donors:
            found.append(
                (known[mode], costs, len(found), MergeTrial(pair, donors[0].job_id, receiving.job_id))
            )
    if not found:
        return None
    _, costs, _, trial = min(found)
    return trial if knowledge.may_try(at_stake + costs) else None


def _nearly_done(
    knowledge: Knowledge, jobs: Sequence[TuningJob], parts: Mapping[str, Part]
) -> dict[str, list[tuple[TuningJob, float]]]:
    """Return the running jobs that may be donors with their remaining samples, by kind, fewest samples
    first."""
    found: dict[str, list[tuple[TuningJob, float]]] = {}
    for job in jobs:
        if job.task is not None and job.iterations > 0 and parts.get(job.job_id, "none") != "none":
            left = knowledge.iterations_left(job) * job.workload.hyperparameters.batch_size
            found.setdefault(job.kind, []).append((job, left))
    return {kind: sorted(some, key=lambda one: one[1]) for kind, some in found.items()}
