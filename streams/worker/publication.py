"""From a decision to the records that it is published as: the log itself, commands, compacted views."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.codec import Decision
from schemas.commands import Command
from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    ZonePriced,
)
from schemas.topics import COMMANDS, DECISIONS, JOBS_STATE, PRICES, topic_name
from schemas.views import JobState, JobStateName
from streams.kafka.records import SentRecord


@dataclass(frozen=True)
class Publication:
    """Where decisions go."""

    topic_prefix: str
    node_partitions: Mapping[str, int]
    """Partition of `commands` by node; the hash of the node's id where it is not given."""

    def records(self, decision: Decision) -> Iterator[SentRecord]:
        """Every record that `decision` is published as, the log's first."""
        headers = decision.headers()
        yield SentRecord(self._topic(DECISIONS), decision.cell.encode(), decision.canonical, headers)
        outcome = decision.outcome
        if isinstance(outcome, Command):
            partition = self.node_partitions.get(outcome.node)
            yield SentRecord(
                self._topic(COMMANDS), outcome.node.encode(), decision.canonical, headers, partition
            )
        if isinstance(outcome, ZonePriced):
            yield SentRecord(
                self._topic(PRICES), f"{decision.cell}/{outcome.zone}".encode(), decision.canonical, headers
            )
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
    """How the job stands that `decision` is about; None where it changes no job's state."""
    match decision.outcome:
        case JobAdmitted() as admitted:
            return _state(
                decision,
                admitted,
                "admitted",
                bid_micros=admitted.bid_micros,
                payment_micros=admitted.payment_micros,
            )
        case JobRejected(reason="duplicate_job"):
            # The job under this id is another one, and stands as it did.
            return None
        case JobRejected() as rejected:
            return _state(
                decision, rejected, "rejected", detail=rejected.detail, bid_micros=rejected.bid_micros
            )
        case JobWithdrawn() as withdrawn:
            return _state(
                decision,
                withdrawn,
                "withdrawn",
                payment_micros=withdrawn.retained_micros,
                returned_micros=withdrawn.returned_micros,
            )
        case JobRefunded() as refunded:
            return _state(
                decision,
                refunded,
                "refunded",
                detail=refunded.detail,
                payment_micros=refunded.retained_micros,
                returned_micros=refunded.refund_micros,
            )
        case JobCompleted() as completed:
            return _state(
                decision,
                completed,
                "completed",
                payment_micros=completed.payment_micros,
                adapter_path=completed.adapter_path,
                adapter_digest=completed.adapter_digest,
            )
        case _:
            return None


def _state(
    decision: Decision,
    outcome: JobAdmitted | JobRejected | JobWithdrawn | JobRefunded | JobCompleted,
    state: JobStateName,
    **amounts: Any,
) -> JobState:
    return JobState(
        cell=decision.cell,
        zone=outcome.zone,
        job_id=outcome.job_id,
        user=outcome.user,
        state=state,
        reason=outcome.reason,
        decision_id=decision.id,
        time_s=decision.time_s,
        **amounts,
    )
