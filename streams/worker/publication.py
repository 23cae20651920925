"""Publication of decisions as records of the log, of commands and of compacted views."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.base import View
from schemas.cells import Zone
from schemas.codec import Decision
from schemas.commands import NodeCommand
from schemas.decisions import (
    EventFaulted,
    JobCompleted,
    JobOutcome,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    ZoneAccepted,
)
from schemas.questions import SolvePosed, encode_posed
from schemas.solves import SolveRequested
from schemas.text import plain
from schemas.topics import (
    COMMANDS,
    DECISIONS,
    JOBS_STATE,
    LEDGER,
    SOLVES_REQUESTED,
    ZONES_STATE,
    dead_letter_name,
    topic_name,
)
from schemas.view_records import JobState, ZoneState
from streams.cell.state_machine import Cell
from streams.kafka.publisher import Confirmation, Publisher
from streams.kafka.records import ReadRecord, SentRecord
from streams.worker.intake import dead_letter

METRIC = "events_faulted"


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


_Sent = tuple[Zone, tuple[str, ...]]


class ZoneStates:
    """Makes a record of each zone that has changed since its last record. For a new cell, these are all
    zones."""

    def __init__(self, topic_prefix: str) -> None:
        self._topic = topic_name(topic_prefix, ZONES_STATE)
        self._sent: dict[str, dict[str, _Sent]] = {}
        """Contents of the last records, by cell and zone."""

    def records(self, cell: Cell, decisions: Collection[Decision]) -> Iterator[SentRecord]:
        """Yield the records of a cell after some decisions."""
        pool = cell.nodes
        if pool is None:
            return
        is_known = cell.name in self._sent
        if is_known and not any(isinstance(each.outcome, NodeMoved | ZoneAccepted) for each in decisions):
            return
        sent = self._sent.setdefault(cell.name, {})
        moved = pool.layout.lent.keys() - pool.loans.keys()
        for zone in pool.layout.owned.zones:
            elsewhere = tuple(node.id for node in zone.nodes if node.id in moved) if moved else ()
            if sent.get(zone.id) == (zone, elsewhere):
                continue
            sent[zone.id] = zone, elsewhere
            state = ZoneState(cell=cell.name, zone=zone, elsewhere=elsewhere)
            yield SentRecord(
                self._topic,
                f"{cell.name}/{zone.id}".encode(),
                state.model_dump_json().encode(),
                [("content-type", b"application/json")],
            )

    def forget(self) -> None:
        """Forget all records: partitions are reassigned, and records of a new cell are sent again."""
        self._sent.clear()


_log = logging.getLogger(__name__)


class FaultLog:
    """Logs the first fault of each kind with its traceback, and then only the tenth, the hundredth and so on,
    since a flood of such events must not fill the disk. All faults are counted."""

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        """Begin without faults.

        Args:
            count: called with `METRIC` for each fault.
        """
        self._count = count
        self._seen: Counter[tuple[str, str | None, str, str]] = Counter()
        """Number of faults, by cell, zone, place and exception."""

    def log_fault(self, cell: Cell, decisions: Iterable[Decision]) -> None:
        """Log the fault among the decisions on an event, if any."""
        for decision in decisions:
            if isinstance(fault := decision.outcome, EventFaulted):
                self._count(METRIC)
                self._log(cell, decision.id, fault)

    def _log(self, cell: Cell, id: str, fault: EventFaulted) -> None:
        kind = cell.name, fault.zone, fault.place, fault.exception
        self._seen[kind] += 1
        number = self._seen[kind]
        if not _is_power_of_ten(number):
            return
        _log.error(
            "faulted cell=%s decision=%s event=%s type=%s exception=%s zone=%s place=%s so_far=%d%s",
            cell.name,
            id,
            plain(fault.event_id),
            fault.event_type,
            fault.exception,
            fault.zone,
            fault.place,
            number,
            f"\n{cell.last_fault}" if number == 1 else "",
        )


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"


class Outbox:
    """Sends the records of decisions, and collects their confirmations."""

    def __init__(
        self, publisher: Publisher, publication: Publication, count: Callable[[str], None] = lambda _: None
    ) -> None:
        """Begin without confirmations. `count` is called with a metric's name at each occurrence."""
        self._publisher = publisher
        self._publication = publication
        self._dead_letters = dead_letter_name(topic_name(publication.topic_prefix, LEDGER))
        self._zone_states = ZoneStates(publication.topic_prefix)
        self._fault_log = FaultLog(count)
        self._confirmations: list[Confirmation] = []

    async def publish(self, cell: Cell | None, decisions: Collection[Decision]) -> None:
        """Send the decisions of a cell on one event."""
        for decision in decisions:
            for sent in self._publication.records(decision):
                await self._send(sent)
        if cell is not None:
            self._fault_log.log_fault(cell, decisions)
            for sent in self._zone_states.records(cell, decisions):
                await self._send(sent)

    async def refuse(self, record: ReadRecord, reason: str) -> None:
        await self._send(dead_letter(record, self._dead_letters, reason))

    def drain_confirmations(self) -> list[Confirmation]:
        """Return the confirmations of the records sent since the last call."""
        drained, self._confirmations = self._confirmations, []
        return drained

    def release(self) -> None:
        """Forget confirmations: partitions are reassigned, and unsecured decisions are published again."""
        self._zone_states.forget()
        self._confirmations = []

    async def _send(self, record: SentRecord) -> None:
        self._confirmations.append(await self._publisher.send(record))
