"""Which merge is made to find out whether such merges pay: one at a time, within a budget.

Trials are the only merges that are made without evidence. What was trained in vain in merges that were undone,
and what trials under way may cost yet, stays below a fiftieth of what the zone's finished jobs were trained.
So what finding out costs is bounded, whatever it finds.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from streams.policies.merging.job import TuningJob
from streams.policies.merging.knowledge import Knowledge, Pair
from streams.policies.merging.tasks import Tasks

Part = Literal["none", "donor", "any"]


class Trial(NamedTuple):
    """A merge that may be in the next plan."""

    pair: Pair
    """The mode and the kinds, as `Knowledge.transfers` has them."""
    job_id: str
    """Of one job, which is in no other merge of that plan. Of the receiving kind."""


def followed(knowledge: Knowledge, tasks: Tasks) -> Iterator[Trial]:
    """Trials under way whose receivers wait for their donors: plans go on having them."""
    for task in tasks.all.values():
        if task.follower is None:
            continue
        donor, receiver = (tasks.jobs[job_id] for job_id in task.job_ids)
        pair: Pair = ("temporal", donor.kind, receiver.kind)
        if receiver.merge is not None and receiver.merge.is_trial and pair in knowledge.transfers:
            yield Trial(pair, receiver.job_id)


def next_trial(
    knowledge: Knowledge, jobs: Sequence[TuningJob], parts: Mapping[str, Part], watched_epochs: int
) -> Trial | None:
    """The cheapest trial that may be made; None where there is none, or one waits for its donor.

    Args:
        jobs: all that are not over.
        parts: by id, what each job that is asked about may be in a merge.
        watched_epochs: in which a merge that does not pay is trained in vain.
    """
    learning = [
        (job, job.merge)
        for job in jobs
        if job.merge is not None and job.merge.is_trial and not job.merge.is_donor
    ]
    if any(job.iterations == 0 for job, _ in learning):
        return None
    busy = {(merge.mode, job.kind) for job, merge in learning}
    at_stake = sum(watched_epochs * knowledge.kinds[kind].dataset_samples for _, kind in busy)
    donors: dict[str, list[str]] = {}
    fresh: dict[str, list[str]] = {}
    for job in jobs:
        part = parts.get(job.job_id, "none")
        if part != "none":
            donors.setdefault(job.kind, []).append(job.job_id)
        if part == "any":
            fresh.setdefault(job.kind, []).append(job.job_id)
    tried = Counter(outcome.mode for outcome in knowledge.outcomes)
    found: list[tuple[bool, int, int, Trial]] = []
    for pair, foretold in knowledge.transfers.items():
        mode, donor, receiver = pair
        givers = (fresh if mode == "spatial" else donors).get(donor, ())
        takers = fresh.get(receiver, ())
        if foretold.evidence != "trial" or not givers or not takers:
            continue
        if donor == receiver and len(givers) < 2:
            continue
        learners = set(_learners(pair))
        if any((mode, kind) in busy for kind in learners):
            continue
        costs = sum(watched_epochs * knowledge.kinds[kind].dataset_samples for kind in learners)
        found.append((donor == receiver, tried[mode], costs, Trial(pair, takers[-1])))
    if not found:
        return None
    *_, costs, trial = min(found, key=lambda one: one[:3])
    return trial if knowledge.may_try(at_stake + costs) else None


def _learners(pair: Pair) -> Iterator[str]:
    mode, donor, receiver = pair
    yield receiver
    if mode == "spatial":
        yield donor
