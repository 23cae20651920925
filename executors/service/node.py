"""The life of a node: commands in, slots carried out, reports out, and what is applied on disk.

The order is always checkpoint, report, journal: whatever is lost in between is done again after a restart.
"""

import logging

from executors.service.acceptance import Acceptance
from executors.service.command_log import CommandLog, CommandRecord
from executors.service.journal import Journal, JournalFile
from executors.service.reports import FleetReports
from executors.service.slot_runner import Activity, SlotRunner, Workshop
from executors.service.stop_signal import StopSignal
from schemas.commands import Command, RunCancelled, SlotAssigned

_WAIT_S: dict[Activity, float] = {"training": 0.0, "waiting": 0.1, "idle": 0.25}
"""How long to wait for commands when there is otherwise so much to do."""

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
        self._acceptance = Acceptance(workshop.cell, node)
        self._runner: SlotRunner | None = None

    def serve(self) -> None:
        """Obey commands until the stop signal; then every run is checkpointed and reported.

        Raises:
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
        _log.info("node stopping node=%s", self._node)
        if self._runner is not None:
            self._runner.close("node_stops")

    def commit(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has every report, then write down what has been applied.

        Raises:
            ReportError: a report is lost, or not confirmed in time.
            OSError: the journal cannot be written.
        """
        self._reports.flush(timeout_s)
        if self._runner is not None:
            self._journal = self._journal.model_copy(update={"over": tuple(sorted(self._runner.over))})
        self._journal_file.save(self._journal)

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
        for record in records:
            accepted = self._acceptance.accept(record, self._journal, self._workshop.clock.time_s())
            if accepted is not None:
                self._obey(accepted.command)
                self._journal = self._journal.with_applied(accepted.key)
            self._journal = self._journal.model_copy(update={"next_offset": record.offset + 1})
        if records:
            self.commit()

    def _obey(self, command: Command) -> None:
        match command:
            case SlotAssigned():
                self._begin_slot(command)
            case RunCancelled(job_id=job_id) if self._runner is None:
                self._workshop.checkpoints.remove(job_id)
            case RunCancelled(job_id=job_id):
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
