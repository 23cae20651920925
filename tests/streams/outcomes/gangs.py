"""Recorded ledgers of zones whose jobs are sets of processes: who starts when, where, with how many GPUs."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.codec import decode_event_line
from schemas.commands import NodeCommand
from schemas.decisions import JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.loans import LoanChanged
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import MergeEvaluated
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell

FOLDER = Path(__file__).parent / "histories"
GANG_POLICIES = (
    *(f"elastic-{scheme}" for scheme in ("lyra", "afs", "gandiva", "fifo", "pollux", "opportunistic")),
    "experts",
    "merging",
)


def gang_table(name: str) -> str:
    """A line for each start, stop and end of a job, each loan and each verdict, in their order."""
    lines = []
    for number, ledger in enumerate(_ledgers(name)):
        cell = Cell("c")
        for event in ledger:
            for decision in cell.handle(event):
                lines += [f"{number} {decision.time_s} {line}\n" for line in outcome_lines(decision.outcome)]
    return "".join(lines)


def _ledgers(name: str) -> Iterator[list[LedgerEvent]]:
    """The recorded ledgers, each of which begins with the configuration of its cell."""
    ledger: list[LedgerEvent] = []
    with gzip.open(FOLDER / f"{name}.jsonl.gz") as lines:
        for line in lines:
            envelope = decode_event_line(line)
            if isinstance(envelope.event, CellConfigured) and ledger:
                yield ledger
                ledger = []
            ledger.append(LedgerEvent(len(ledger), envelope))
    yield ledger


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """Yield a line for an outcome that starts, stops or ends a job, or concludes a loan or a merge."""
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
        # Orders to lost nodes change nothing for any job.
        case WorkersReleased() | RanksReleased() | TaskReleased() if outcome.reason == "node_lost":
            pass
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
        case MergeEvaluated():
            yield f"{outcome.job_id} with {outcome.partner} {outcome.reason} {outcome.iterations}"


def _leads(command: WorkersAssigned | RanksAssigned | TaskAssigned) -> bool:
    """Return whether a command is the first of those to the members of a generation."""
    assert isinstance(command, NodeCommand)
    return command.members[0].node == command.node


def _places(command: RanksAssigned | ExpertsPlaced) -> str:
    layers = command.placement if isinstance(command, RanksAssigned) else command.layers
    return " ".join(
        f"{layer.layer}:{'|'.join('.'.join(map(str, device)) for device in layer.devices)}"
        for layer in layers
    )
