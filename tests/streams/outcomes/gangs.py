"""Histories of zones whose jobs are sets of processes: who starts when, where, and with how many GPUs."""

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from types import MappingProxyType

from schemas.base import Outcome
from schemas.codec import Decision
from schemas.commands import NodeCommand
from schemas.decisions import JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.loans import LoanChanged
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import MergeJudged
from tests.streams.elastic.test_histories import History as ElasticHistory
from tests.streams.experts.test_histories import History as ExpertsHistory
from tests.streams.merging.test_histories import History as MergingHistory

_STEPS = 400
_MERGING_STEPS = 150
"""Fewer, since these histories solve plans."""


def _elastic(scheme: str) -> Iterator[Decision]:
    for seed in range(3):
        history = ElasticHistory(random.Random(f"outcomes/{scheme}/{seed}"), servers=2 + seed, scheme=scheme)
        for _ in range(_STEPS):
            history.step()
        history.come_to_rest()
        yield from history.bench.decisions


def _experts() -> Iterator[Decision]:
    for seed in range(8):
        history = ExpertsHistory(random.Random(f"outcomes/experts/{seed}"), (5.0, 3_600.0)[seed % 2])
        for _ in range(_STEPS):
            history.step()
        history.come_to_rest()
        yield from history.bench.decisions


def _merging() -> Iterator[Decision]:
    for seed in range(4):
        history = MergingHistory(random.Random(f"outcomes/merging/{seed}"))
        for _ in range(_MERGING_STEPS):
            history.step()
        history.settle()
        yield from history.world.bench.decisions


GANG_POLICIES: MappingProxyType[str, Callable[[], Iterator[Decision]]] = MappingProxyType(
    {
        **{
            f"elastic-{scheme}": lambda scheme=scheme: _elastic(scheme)
            for scheme in ("lyra", "afs", "gandiva", "fifo", "pollux", "opportunistic")
        },
        "experts": _experts,
        "merging": _merging,
    }
)


def gang_table(name: str) -> str:
    """A line for each start, stop and end of a job, each loan and each judgement, in their order."""
    lines = []
    decisions = GANG_POLICIES[name]()
    for time_s, outcomes in groupby(decisions, lambda decision: decision.time_s):
        lines += [f"{time_s} {line}" for decision in outcomes for line in _lines(decision.outcome)]
    return "".join(f"{line}\n" for line in lines)


def _lines(outcome: Outcome) -> Iterator[str]:
    match outcome:
        case WorkersAssigned() if _leads(outcome):
            members = ",".join(f"{member.node}x{member.workers}" for member in outcome.members)
            kind = "starts" if outcome.resumes else "is resized"
            yield f"{outcome.job_id} {kind} {outcome.generation} {members} from {outcome.resume_samples}"
        case RanksAssigned() if _leads(outcome):
            members = ",".join(f"{member.node}x{member.ranks}" for member in outcome.members)
            yield (
                f"{outcome.job_id} starts {outcome.generation} {members} from {outcome.resume_samples} "
                f"revision {outcome.revision} {_places(outcome)}"
            )
        case ExpertsPlaced():
            yield f"{outcome.job_id} places on {outcome.node} {outcome.revision} {_places(outcome)}"
        case TaskAssigned() if _leads(outcome):
            members = ",".join(f"{member.node}x{member.gpus}" for member in outcome.members)
            orders = "+".join(f"{order.job_id}@{order.resume_iterations}" for order in outcome.orders)
            yield f"{orders} starts {outcome.generation} {outcome.mode} {members}"
        case ProfileOrdered():
            yield f"{outcome.order.job_id} is profiled {outcome.node}x{outcome.gpus}"
        case WorkersReleased() | RanksReleased():
            yield f"{outcome.job_id} leaves {outcome.node} {outcome.generation} {outcome.reason}"
        case TaskReleased():
            jobs = "+".join(outcome.job_ids)
            yield f"{jobs} leaves {outcome.node} {outcome.generation} {outcome.reason}"
        case JobRejected() | JobRefunded():
            yield f"{outcome.job_id} {outcome.STATE} {outcome.reason}"
        case JobWithdrawn() | JobCompleted():
            yield f"{outcome.job_id} {outcome.STATE}"
        case LoanChanged():
            yield f"{outcome.server} {outcome.status} {outcome.borrower} {outcome.due_s}"
        case MergeJudged():
            yield f"{outcome.job_id} with {outcome.partner} {outcome.reason} {outcome.iterations}"


def _leads(command: WorkersAssigned | RanksAssigned | TaskAssigned) -> bool:
    """Whether a command is the first of those that say the same to each member."""
    assert isinstance(command, NodeCommand)
    return command.members[0].node == command.node


def _places(command: RanksAssigned | ExpertsPlaced) -> str:
    layers = command.placement if isinstance(command, RanksAssigned) else command.layers
    return " ".join(
        f"{layer.layer}:{'|'.join('.'.join(map(str, device)) for device in layer.devices)}"
        for layer in layers
    )
