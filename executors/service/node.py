"""The life of a node: commands in, slots carried out, reports out, and what is applied on disk.

The order is always checkpoint, report, journal: whatever is lost in between is done again after a restart.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

from executors.service.acceptance import Acceptance, AcceptedCommand
from executors.service.command_log import CommandLog, CommandRecord
from executors.service.journal import Journal, JournalFile
from executors.service.reports import FleetReports
from executors.service.room import NoRoomError
from executors.service.slot_runner import Activity, SlotRunner, Workshop
from executors.service.stop_signal import StopSignal
from schemas.commands import Command, RunCancelled, SlotAssigned

_WAIT_S: dict[Activity, float] = {"training": 0.0, "waiting": 0.1, "idle": 0.25}
"""How long to wait for commands when there is otherwise so much to do."""
_ROOM_CHECK_S = 5.0
_ROOM_POLL_S = 1.0
_ROOM_LOG_S = 60.0

_log = logging.getLogger(__name__)


class Node:
    """Serves one node until it is asked to stop."""

    def __init__(
        self,
        node: str,
        workshop: Workshop,
        commands: CommandLog,
        reports: FleetReports,
        journal_file: JournalFile,
        journal: Journal,
        stop: StopSignal,
    ) -> None:
        self._node = node
        self._workshop = workshop
        self._commands = commands
        self._reports = reports
        self._journal_file = journal_file
        self._journal = journal
        self._stop = stop
        self._room = workshop.room
        self._next_room_check_s = 0.0
        self._acceptance = Acceptance(workshop.cell, node)
        self._runner: SlotRunner | None = None

    def serve(self) -> None:
        """Obey commands until the stop signal; then every run is checkpointed and reported.

        Raises:
            NoRoomError: the disks have no room for what the node must write; `leave` comes next.
            ReportError: a report is lost; the journal does not know of what caused it.
            KafkaException: commands cannot be read.
            OSError: the journal cannot be written.
            torch.AcceleratorError: the device is lost.
        """
        self._resume()
        while not self._commands.caught_up and not self._stop.requested:
            # A newer slot may be waiting: do not begin one only to end it.
            self._apply(self._commands.read(_WAIT_S["idle"]))
            self._reports.check()
        while not self._stop.requested:
            self._apply(self._commands.read(_WAIT_S[self._advance()]))
            self._reports.check()
            self._check_room()
        _log.info("node stopping node=%s", self._node)
        if self._runner is not None:
            self._runner.close("node_stops")

    def commit(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has every report, then write down what has been applied.

        Raises:
            NoRoomError: the disk has no room for the journal.
            ReportError: a report is lost, or not confirmed in time.
            OSError: the journal cannot be written for another reason.
        """
        self._reports.flush(timeout_s)
        if self._runner is not None:
            self._journal = self._journal.model_copy(update={"over": tuple(sorted(self._runner.over))})
        try:
            self._journal_file.save(self._journal)
        except OSError as error:
            refused = self._workshop.room.refused(0)
            if refused is None:
                raise
            raise NoRoomError(refused, 0) from error

    def leave(self) -> None:
        """End every run as far as the disks allow. The cell plans the slot's rest again, elsewhere."""
        if self._runner is not None:
            self._runner.give_up()
            over = {*self._runner.over, *(run.job_id for run in self._runner.assignment.runs)}
            self._journal = self._journal.model_copy(update={"over": tuple(sorted(over))})
            self._runner = None

    def await_room(self, shortage: NoRoomError | None, on_shortage: Callable[[str], None]) -> None:
        """Return when the disks have room, or the node is asked to stop; all slots meanwhile pass it by.

        After a shortage there must be room for what was lacking and a reserve, lest the node come and go.

        Args:
            shortage: what was too little when the node left; None at its start.
            on_shortage: is told why the node waits, once.
        """
        needed_bytes, reserve = (0, 1) if shortage is None else (shortage.needed_bytes, 2)
        while not self._stop.requested:
            lacking = self._room.lacking(needed_bytes, reserve) or self._room.refused(needed_bytes)
            if lacking is None:
                with suppress(NoRoomError):  # somebody else may have taken it meanwhile
                    self.commit()
                    self._next_room_check_s = 0.0
                    return
                continue
            if shortage is None:
                shortage, reserve = NoRoomError(lacking, needed_bytes), 2
                on_shortage(lacking)
            now_s = self._workshop.clock.time_s()
            if now_s >= self._next_room_check_s:
                self._next_room_check_s = now_s + _ROOM_LOG_S
                _log.warning("node waits node=%s: %s", self._node, lacking)
            for record in self._commands.read(_ROOM_POLL_S):
                accepted = self._accept(record)
                if accepted is not None and isinstance(accepted.command, RunCancelled):
                    self._workshop.checkpoints.remove(accepted.command.job_id)
            self._reports.check()

    def _check_room(self) -> None:
        now_s = self._workshop.clock.time_s()
        if now_s >= self._next_room_check_s:
            self._next_room_check_s = now_s + _ROOM_CHECK_S
            lacking = self._room.lacking(0)
            if lacking is not None:
                raise NoRoomError(lacking, 0)

    def _resume(self) -> None:
        """Take up the slot that the process before this one was in, if only to report what it could not."""
        assignment = self._journal.assignment
        if assignment is not None:
            _log.info("slot resumed slot=%d over=%s", assignment.slot, ",".join(self._journal.over))
            self._runner = self._new_runner(assignment, self._journal.over)

    def _advance(self) -> Activity:
        if self._runner is None:
            return "idle"
        over = len(self._runner.over)
        activity = self._runner.advance()
        if len(self._runner.over) > over:
            self.commit()
        return activity

    def _apply(self, records: list[CommandRecord]) -> None:
        """Apply commands in their order; their position is committed only when all their reports are out."""
        shortage = None
        for job_id in self._acceptance.cancelled_jobs(records):
            # A slot among these commands ends the runs before it, and what ends may be published.
            self._cancel(job_id)
        for record in records:
            accepted = self._accept(record)
            if accepted is not None:
                try:
                    self._obey(accepted.command)
                except NoRoomError as error:
                    # What is cancelled by the commands after this one still has to go.
                    shortage = error
        if shortage is not None:
            raise shortage
        if records:
            self.commit()

    def _accept(self, record: CommandRecord) -> AcceptedCommand | None:
        """Judge a record, and note that it is dealt with."""
        accepted = self._acceptance.accept(record, self._journal, self._workshop.clock.time_s())
        if accepted is not None:
            self._journal = self._journal.with_applied(accepted.key)
        self._journal = self._journal.model_copy(update={"next_offset": record.offset + 1})
        return accepted

    def _obey(self, command: Command) -> None:
        match command:
            case SlotAssigned():
                self._begin_slot(command)
            case RunCancelled(job_id=job_id):
                self._cancel(job_id)

    def _cancel(self, job_id: str) -> None:
        if self._runner is None:
            self._workshop.checkpoints.remove(job_id)
        else:
            self._runner.cancel(job_id)

    def _begin_slot(self, assignment: SlotAssigned) -> None:
        if self._runner is not None:
            self._runner.close("newer_slot")
        _log.info(
            "slot begun slot=%d runs=%s", assignment.slot, ",".join(run.job_id for run in assignment.runs)
        )
        self._journal = self._journal.model_copy(update={"assignment": assignment, "over": ()})
        self._runner = self._new_runner(assignment, ())

    def _new_runner(self, assignment: SlotAssigned, over: tuple[str, ...]) -> SlotRunner:
        return SlotRunner(assignment, over, self._workshop, self._reports.send)
