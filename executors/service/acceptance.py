"""Which commands a node obeys.

Whoever reaches the broker may write to `commands`, and no command proves who wrote it. What a command says is
therefore held against what is possible: the present time, the length of slots, and the cell's calendar as
the commands before it had it. A forged one that is possible in all this may cost the node a slot; none
changes what is accepted after it, so that none makes the node deaf.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from executors.service.command_log import CommandRecord
from executors.service.journal import Journal
from schemas.cells import LEAST_SLOT_S, MAX_SLOT_S
from schemas.codec import Decision, InvalidRecordError, decode_decision
from schemas.commands import Command, RunCancelled, SlotAssigned
from schemas.topics import INPUT_MAX_MESSAGE_BYTES

CLOCK_TOLERANCE_S = 60.0
"""So far the cell's clock may be ahead of the node's."""
_LENGTH_TOLERANCE = 1e-3
"""Relative: the ends of a slot are rounded, which shows where slots are short."""
_KEY_DIGITS = 16

_log = logging.getLogger(__name__)


class _ImpossibleError(ValueError):
    """No cell of this configuration sends such a command."""


@dataclass(frozen=True)
class AcceptedCommand:
    """A command that is to be applied."""

    key: str
    """Tells it from every other: its decision's id, which anybody can guess, with the start of its chain."""
    command: Command


class Acceptance:
    """Judges the commands of one node."""

    def __init__(self, cell: str, node: str) -> None:
        self._cell = cell
        self._node = node
        self._doubted: SlotAssigned | None = None
        """The last that was refused for being of another calendar."""

    def accept(self, record: CommandRecord, journal: Journal, now_s: float) -> AcceptedCommand | None:
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
        if (decision.cell, command.node) != (self._cell, self._node):
            # Nodes may share a partition.
            return None
        key = f"{decision.id} {decision.chain[:_KEY_DIGITS]}"
        try:
            reason = "applied already" if key in journal.applied else self._reason(command, journal, now_s)
        except _ImpossibleError as error:
            _log.warning(
                "command refused id=%s topic=%s partition=%d offset=%d reason=%s",
                *(decision.id, journal.topic, journal.partition, record.offset, error),
            )
            return None
        if reason is not None:
            _log.info("command skipped id=%s offset=%d reason=%s", decision.id, record.offset, reason)
            return None
        _log.info("command accepted id=%s offset=%d type=%s", decision.id, record.offset, command.TYPE)
        return AcceptedCommand(key, command)

    def cancelled_jobs(self, records: Iterable[CommandRecord]) -> Iterator[str]:
        """The jobs that some of these records cancel on this node."""
        for record in records:
            with suppress(InvalidRecordError):
                decision = _decode(record.value)
                cancelled = decision.outcome
                if isinstance(cancelled, RunCancelled) and (decision.cell, cancelled.node) == (
                    self._cell,
                    self._node,
                ):
                    yield cancelled.job_id

    def _reason(self, command: Command, journal: Journal, now_s: float) -> str | None:
        """Why a command is out of date, if it is.

        Raises:
            _ImpossibleError: it never was of this cell.
        """
        if not isinstance(command, SlotAssigned):
            return None
        _refuse_impossible(command, now_s)
        if command.slot_end_s <= now_s:
            return "the slot is over"
        present = journal.assignment
        if present is not None:
            self._refuse_another_calendar(command, present)
            if present.slot_end_s > now_s and command.slot_start_s <= present.slot_start_s:
                return "the slot is not newer"
        self._doubted = None
        return None

    def _refuse_another_calendar(self, command: SlotAssigned, present: SlotAssigned) -> None:
        """Refuse a slot that is not where the one before it puts it.

        A second one in succession that agrees with the refused one is believed: the cell was set up anew,
        or it was the first that was forged.
        """
        doubted = self._doubted
        agree = (
            doubted is not None and doubted.slot != command.slot and _are_of_one_calendar(command, doubted)
        )
        if not agree and not _are_of_one_calendar(command, present):
            self._doubted = command
            raise _ImpossibleError(
                f"slot {command.slot} from {command.slot_start_s:.3f} to {command.slot_end_s:.3f} s: "
                f"slot {present.slot} was from {present.slot_start_s:.3f} to {present.slot_end_s:.3f} s"
            )


def _refuse_impossible(command: SlotAssigned, now_s: float) -> None:
    length_s = command.slot_end_s - command.slot_start_s
    if not LEAST_SLOT_S * (1 - _LENGTH_TOLERANCE) <= length_s <= MAX_SLOT_S * (1 + _LENGTH_TOLERANCE):
        raise _ImpossibleError(
            f"a slot of {length_s:g} s: a cell has slots of {LEAST_SLOT_S:g} to {MAX_SLOT_S:g} s"
        )
    ahead_s = command.slot_start_s - now_s
    if ahead_s > CLOCK_TOLERANCE_S:
        raise _ImpossibleError(
            f"the slot begins in {ahead_s:.0f} s, and is told when it begins: are the clocks synchronised?"
        )
    job_id, times = next(iter(Counter(run.job_id for run in command.runs).most_common(1)), ("", 0))
    if times > 1:
        raise _ImpossibleError(f"job {job_id} is given {times} runs")


def _are_of_one_calendar(one: SlotAssigned, other: SlotAssigned) -> bool:
    """Whether two slots are as long, and as far apart in time as in number, give or take one slot.

    The rounding of a slot's ends is less than that, and by one slot no job's checkpoints get out of reach.
    """
    length_s = other.slot_end_s - other.slot_start_s
    slots_between = (one.slot_start_s - other.slot_start_s) / length_s
    return (
        math.isclose(one.slot_end_s - one.slot_start_s, length_s, rel_tol=_LENGTH_TOLERANCE)
        and abs(slots_between - (one.slot - other.slot)) <= 1
    )


def _decode(value: bytes | None) -> Decision:
    if value is None:
        raise InvalidRecordError("the record has no value")
    if len(value) > INPUT_MAX_MESSAGE_BYTES:
        raise InvalidRecordError(
            f"the value has {len(value)} bytes, at most {INPUT_MAX_MESSAGE_BYTES} are read"
        )
    return decode_decision(value)


def _command_in(decision: Decision) -> Command:
    if not isinstance(decision.outcome, Command):
        raise InvalidRecordError(f"{decision.outcome.TYPE} is no command")
    return decision.outcome
