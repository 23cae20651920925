"""Reading of the node's partition of `commands` from the journal's position, without a consumer group, and
parsing of its records: to a command for a runner of this node, or the reason of its refusal.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from pydantic import ValidationError

from executors.node.journal import Journal
from executors.node.settings import ExecutorSettings
from schemas.access import use_of_topics
from schemas.base import MAX_TEXT_LENGTH
from schemas.codec import DecisionEnvelope, InvalidRecordError, decode_data, decode_decision_record
from schemas.commands import Command, RunDisowned
from schemas.fleet import MAX_REFUSED_RUNS, CommandRefused, RefusalReason, RefusedRun
from schemas.registry import DECISION_TYPES
from schemas.topics import COMMANDS, INPUT_MAX_MESSAGE_BYTES, topic_name
from streams.kafka.administration import Administration
from streams.kafka.configuration import reader
from streams.kafka.consumer import RecordConsumer
from streams.kafka.records import Partition, key_partition

_ANSWER_TIMEOUT_S = 30.0
_MAX_RECORDS_AT_ONCE = 100

_log = logging.getLogger(__name__)


_KEY_DIGITS = 16


class CommandLogError(RuntimeError):
    """The topic of commands is unfit for a node."""


@dataclass(frozen=True)
class CommandRecord:
    """An unparsed record of the topic."""

    offset: int
    value: bytes | None


class CommandLog:
    """Reads one partition.

    Attributes:
        cluster_id: id of its Kafka cluster.
        topic: the topic's full name.
        partition: the node's.
    """

    def __init__(self, consumer: RecordConsumer, cluster_id: str, topic: str, partition: int) -> None:
        self._consumer = consumer
        self.cluster_id = cluster_id
        self.topic = topic
        self.partition = partition

    @classmethod
    def connect(cls, settings: ExecutorSettings) -> Self:
        """Find the node's partition; reading begins with `start`.

        Raises:
            CommandLogError: there is no such partition.
            BrokerError: the broker does not answer, or a topic or a right is missing.
        """
        topic = topic_name(settings.topic_prefix, COMMANDS)
        administration = Administration(settings, _ANSWER_TIMEOUT_S)
        count = administration.require(use_of_topics("nodes", settings.topic_prefix))[topic]
        consumer = RecordConsumer(
            {
                **reader(settings, f"millrace-executor-{settings.node}"),
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            },
            _log,
        )
        partition = settings.node_partitions.get(settings.node)
        if partition is None:
            partition = key_partition(settings.node, count)
        if partition >= count:
            raise CommandLogError(
                f"node {settings.node} is given partition {partition} of {topic}, which has {count}"
            )
        return cls(consumer, administration.cluster_id(), topic, partition)

    def start(self, next_offset: int) -> None:
        """Read from `next_offset` on, or from the earliest record if the topic starts later or ends
        before."""
        self._consumer.assign({Partition(self.topic, self.partition): next_offset})

    @property
    def caught_up(self) -> bool:
        """Whether all records that existed at the start of reading have been read."""
        return bool(self._consumer.ended)

    def read(self, timeout_s: float) -> list[CommandRecord]:
        """Return the next records; wait only for the first one.

        Raises:
            UnreadTopicError: reading cannot continue.
        """
        records = self._consumer.read(timeout_s, _MAX_RECORDS_AT_ONCE)
        return [CommandRecord(record.offset, record.value) for record in records]

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True)
class AcceptedCommand:
    """A command for a runner of this node that is not yet applied."""

    id: str
    """Id of its decision."""
    key: str
    """Unique key: its id, which a user can guess, with the start of its chain."""
    command: Command | RunDisowned


@dataclass(frozen=True)
class ParsedRecord:
    """A record of `commands`, which is parsed once."""

    offset: int
    content: AcceptedCommand | CommandRefused | InvalidRecordError | None
    """A command for this node, its refusal, or the fault of the record; None if it is for another node."""


class Acceptance:
    """Reads the commands of one node. A record can neither stop the node nor hide the next record."""

    def __init__(self, cell: str, node: str, types: Mapping[str, type[Command]]) -> None:
        """`types` are the commands of the node's runners, by CloudEvents type."""
        self._cell = cell
        self._node = node
        self._types = types

    def parse(self, record: CommandRecord) -> ParsedRecord:
        try:
            return ParsedRecord(record.offset, self._read(record.value))
        except InvalidRecordError as error:
            return ParsedRecord(record.offset, error)

    def accept(self, record: ParsedRecord, journal: Journal) -> AcceptedCommand | CommandRefused | None:
        """Return the command in a record, or the reason why the node cannot obey it; None if it is for
        another node, is not a command, or was applied already. The latter two are logged."""
        accepted = record.content
        if isinstance(accepted, InvalidRecordError):
            _log.warning(
                "command unreadable topic=%s partition=%d offset=%d error=%s",
                *(journal.topic, journal.partition, record.offset, accepted),
            )
            return None
        if isinstance(accepted, AcceptedCommand) and accepted.key in journal.applied:
            _log.info("command skipped id=%s offset=%d reason=applied already", accepted.id, record.offset)
            return None
        return accepted

    def cancelling(self, records: Iterable[ParsedRecord], journal: Journal) -> Iterator[Command]:
        """Yield the commands among these records that only revoke work, and were not applied already."""
        for record in records:
            accepted = record.content
            if not isinstance(accepted, AcceptedCommand) or accepted.key in journal.applied:
                continue
            if isinstance(accepted.command, Command) and accepted.command.CANCELS:
                yield accepted.command

    def refusal(
        self, id: str, runner: str | None, reason: RefusalReason, detail: str, data: Mapping[str, Any]
    ) -> CommandRefused:
        """Return the report of a command, with this data, that this node does not obey."""
        return CommandRefused(
            cell=self._cell,
            node=self._node,
            command_id=id,
            runner=runner,
            reason=reason,
            detail=detail[:MAX_TEXT_LENGTH],
            runs=tuple(islice(_runs_in(data), MAX_REFUSED_RUNS)),
        )

    def _read(self, value: bytes | None) -> AcceptedCommand | CommandRefused | None:
        """Parse the envelope first, and then the fields that depend on the type.

        Raises:
            InvalidRecordError: the record is not a command.
        """
        if value is None:
            raise InvalidRecordError("the record has no value")
        if len(value) > INPUT_MAX_MESSAGE_BYTES:
            raise InvalidRecordError(
                f"the value has {len(value)} bytes, at most {INPUT_MAX_MESSAGE_BYTES} are read"
            )
        decision = decode_decision_record(value)
        if "node" not in decision.data:
            raise InvalidRecordError(f"{decision.type} is not a command: it names no node")
        if (decision.cell, decision.data["node"]) != (self._cell, self._node):
            # Nodes may share a partition.
            return None
        model = self._types.get(decision.type)
        command: Command | RunDisowned
        try:
            if decision.type == RunDisowned.TYPE:
                command = decode_data(decision, RunDisowned)
            elif model is None:
                return self._unknown(decision)
            else:
                command = decode_data(decision, model)
        except InvalidRecordError as error:
            runner = None if model is None else model.RUNNER
            return self.refusal(decision.id, runner, "malformed", str(error), decision.data)
        return AcceptedCommand(decision.id, f"{decision.id} {decision.chain[:_KEY_DIGITS]}", command)

    def _unknown(self, decision: DecisionEnvelope) -> CommandRefused:
        runners = ", ".join(sorted({model.RUNNER for model in self._types.values()}))
        known = DECISION_TYPES.get(decision.type)
        if known is not None and issubclass(known, Command):
            detail = f"{decision.type} is for runner {known.RUNNER}, the node has {runners}"
            return self.refusal(decision.id, known.RUNNER, "runner_missing", detail, decision.data)
        detail = f"no command of type {decision.type!r} is known here, the node has {runners}"
        return self.refusal(decision.id, None, "unknown_type", detail, decision.data)


def _runs_in(data: Mapping[str, Any]) -> Iterator[RefusedRun]:
    """Yield the runs that a command names: itself, in one of its fields, or in a list of them. It may be
    malformed or of an unknown type, so invalid names are skipped."""
    for part in (data, *data.values()):
        for each in part if isinstance(part, list | tuple) else (part,):
            if isinstance(each, Mapping) and "run_id" in each:
                with suppress(ValidationError):
                    yield RefusedRun.model_validate({"run_id": each["run_id"], "job_id": each.get("job_id")})
