"""Which merge is made to find out whether such merges pay: one at a time, within a budget.

Trials are the only merges that are made without evidence. A trial may cost as much as the watched epochs of
the jobs that learn in it. It must be cheap beside what the zone's jobs need, and what was trained in vain in
all merges that were undone, with what the trial may cost, is a small share of what finished jobs were trained
(`Knowledge.may_try`). So what finding out costs is bounded, whatever it finds.

The receiver of a temporal trial waits for its donor. So the donor is a job that is nearly done.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from streams.policies.merging.job import TuningJob
from streams.policies.merging.knowledge import Knowledge, Pair
from streams.policies.merging.tasks import Tasks

Part = Literal["none", "donor", "any"]


class Trial(NamedTuple):
    """A merge that may be in the next plan, of these two jobs and of no others."""

    pair: Pair
    """The mode and the kinds, as `Knowledge.transfers` has them."""
    donor: str
    receiver: str


def trials_of_plan(
    knowledge: Knowledge, tasks: Tasks, parts: Mapping[str, Part], watched_epochs: int
) -> list[Trial]:
    """Those that a plan may have: under way, with a receiver that waits for its donor, or else a new one.

    Args:
        parts: by id, what each job that is asked about may be in a merge.
        watched_epochs: in which a merge that does not pay is trained in vain.
    """
    under_way = list(_under_way(knowledge, tasks))
    if under_way:
        return under_way
    new = _cheapest(knowledge, list(tasks.jobs.values()), parts, watched_epochs)
    return [] if new is None else [new]


def _under_way(knowledge: Knowledge, tasks: Tasks) -> Iterator[Trial]:
    for task in tasks.all.values():
        if task.follower is None:
            continue
        donor, receiver = (tasks.jobs[job_id] for job_id in task.job_ids)
        pair: Pair = ("temporal", donor.kind, receiver.kind)
        if receiver.merge is not None and receiver.merge.is_trial and pair in knowledge.transfers:
            yield Trial(pair, donor.job_id, receiver.job_id)


def _cheapest(
    knowledge: Knowledge, jobs: Sequence[TuningJob], parts: Mapping[str, Part], watched_epochs: int
) -> Trial | None:
    """The cheapest new trial, in the mode of which fewer merges are known."""
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
    found: list[tuple[int, int, int, Trial]] = []
    for pair, foretold in knowledge.transfers.items():
        mode, donor, receiver = pair
        takers = fresh.get(receiver, [])
        if foretold.evidence != "trial" or not takers:
            continue
        learners = {donor, receiver} if mode == "spatial" else {receiver}
        each = [watched_epochs * knowledge.kinds[kind].dataset_samples for kind in learners]
        costs = sum(each)
        if not knowledge.is_cheap(max(each)) or any((mode, kind) in learning for kind in learners):
            continue
        taker = takers[-1]
        if mode == "spatial":
            givers = [job for job in fresh.get(donor, []) if job is not taker]
        else:
            givers = [job for job, left in leaving.get(donor, []) if job is not taker and left <= costs]
        if givers:
            found.append((known[mode], costs, len(found), Trial(pair, givers[0].job_id, taker.job_id)))
    if not found:
        return None
    _, costs, _, trial = min(found)
    return trial if knowledge.may_try(at_stake + costs) else None


def _nearly_done(
    knowledge: Knowledge, jobs: Sequence[TuningJob], parts: Mapping[str, Part]
) -> dict[str, list[tuple[TuningJob, float]]]:
    """By kind, jobs that run and may be donors, and on how many samples each is still to be trained; the one
    with the fewest first."""
    found: dict[str, list[tuple[TuningJob, float]]] = {}
    for job in jobs:
        if job.task is not None and job.iterations > 0 and parts.get(job.job_id, "none") != "none":
            left = knowledge.iterations_left(job) * job.workload.hyperparameters.batch_size
            found.setdefault(job.kind, []).append((job, left))
    return {kind: sorted(some, key=lambda one: one[1]) for kind, some in found.items()}
