"""Records by which a decision is published: the log, commands, and compacted views."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.base import View
from schemas.codec import Decision
from schemas.commands import NodeCommand
from schemas.decisions import (
    JobCompleted,
    JobOutcome,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
)
from schemas.questions import SolvePosed, encode_posed
from schemas.solves import SolveRequested
from schemas.topics import COMMANDS, DECISIONS, JOBS_STATE, SOLVES_REQUESTED, topic_name
from schemas.views import JobState
from streams.kafka.records import SentRecord


@dataclass(frozen=True)
class Publication:
    """Topics and partitions of decisions."""

    topic_prefix: str
    node_partitions: Mapping[str, int]
    """Partition of `commands` by node; by the hash of the node's id if absent."""

    def records(self, decision: Decision) -> Iterator[SentRecord]:
        """Yield the records of a decision, that of the log first."""
        headers = decision.headers()
        yield SentRecord(self._topic(DECISIONS), decision.cell.encode(), decision.canonical, headers)
        outcome = decision.outcome
        if isinstance(outcome, NodeCommand):
            partition = self.node_partitions.get(outcome.node)
            yield SentRecord(
                self._topic(COMMANDS), outcome.node.encode(), decision.canonical, headers, partition
            )
        if isinstance(outcome, SolveRequested):
            yield SentRecord(
                self._topic(SOLVES_REQUESTED),
                decision.cell.encode(),
                encode_posed(decision, outcome),
                decision.headers(SolvePosed.TYPE),
            )
        if isinstance(outcome, View):
            key = f"{decision.cell}/{getattr(outcome, outcome.KEY_FIELD)}"
            yield SentRecord(self._topic(outcome.VIEW), key.encode(), decision.canonical, headers)
        state = job_state(decision)
        if state is not None:
            yield SentRecord(
                self._topic(JOBS_STATE),
                f"{state.cell}/{state.user}/{state.job_id}".encode(),
                state.model_dump_json().encode(),
                [("content-type", b"application/json")],
            )

    def _topic(self, name: str) -> str:
        return topic_name(self.topic_prefix, name)


def job_state(decision: Decision) -> JobState | None:
    """Return the state of a decision's job; None if the decision changes no job's state."""
    outcome = decision.outcome
    if not isinstance(outcome, JobOutcome) or outcome.is_of_another_job:
        return None
    further: dict[str, Any] = {}
    match outcome:
        case JobRejected():
            further = {"facts": outcome.facts}
        case JobWithdrawn():
            further = {"returned_micros": outcome.returned_micros}
        case JobRefunded():
            further = {"facts": outcome.facts, "returned_micros": outcome.refund_micros}
        case JobCompleted():
            further = {"adapter_path": outcome.adapter_path, "adapter_digest": outcome.adapter_digest}
    return JobState(
        cell=decision.cell,
        zone=outcome.zone,
        job_id=outcome.job_id,
        user=outcome.user,
        state=outcome.STATE,
        reason=outcome.reason,
        decision_id=decision.id,
        time_s=decision.time_s,
        payment_micros=outcome.owed_micros,
        **further,
    )
