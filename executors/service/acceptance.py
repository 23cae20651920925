"""Which commands a node obeys."""

import logging
from dataclasses import dataclass

from executors.service.command_log import CommandRecord
from executors.service.journal import Journal
from schemas.codec import Decision, InvalidRecordError, decode_decision
from schemas.commands import Command, RunCancelled, SlotAssigned
from schemas.topics import INPUT_MAX_MESSAGE_BYTES

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AcceptedCommand:
    """A command that is to be applied."""

    id: str
    command: Command


def accept(
    record: CommandRecord, journal: Journal, cell: str, node: str, now_s: float
) -> AcceptedCommand | None:
    """Return the command in a record; None, with a line in the log, if there is nothing to apply."""
    try:
        decision = _decode(record.value)
        command = _command_in(decision)
    except InvalidRecordError as error:
        _log.warning(
            "command unreadable topic=%s partition=%d offset=%d error=%s",
            *(journal.topic, journal.partition, record.offset, error),
        )
        return None
    if (decision.cell, command.node) != (cell, node):
        # Nodes may share a partition.
        return None
    reason = _reason_to_skip(decision.id, command, journal, now_s)
    if reason is not None:
        _log.info("command skipped id=%s offset=%d reason=%s", decision.id, record.offset, reason)
        return None
    _log.info("command accepted id=%s offset=%d type=%s", decision.id, record.offset, command.TYPE)
    return AcceptedCommand(decision.id, command)


def _decode(value: bytes | None) -> Decision:
    if value is None:
        raise InvalidRecordError("the record has no value")
    if len(value) > INPUT_MAX_MESSAGE_BYTES:
        raise InvalidRecordError(
            f"the value has {len(value)} bytes, at most {INPUT_MAX_MESSAGE_BYTES} are read"
        )
    return decode_decision(value)


def _command_in(decision: Decision) -> Command:
    if not isinstance(decision.outcome, SlotAssigned | RunCancelled):
        raise InvalidRecordError(f"{decision.outcome.TYPE} is no command")
    return decision.outcome


def _reason_to_skip(id: str, command: Command, journal: Journal, now_s: float) -> str | None:
    present = journal.assignment
    if id in journal.applied:
        return "applied already"
    if isinstance(command, SlotAssigned):
        if command.slot_end_s <= now_s:
            return "the slot is over"
        if present is not None and present.slot_end_s > now_s and command.slot <= present.slot:
            return "the slot is not newer"
    return None
