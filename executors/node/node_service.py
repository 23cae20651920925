"""Loop of a node: reads commands, runs runners, sends reports, and records applied commands on disk.

The order is always checkpoint, report, journal: a restart repeats the steps that a crash interrupts.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaException

from executors.node.commands import Acceptance, AcceptedCommand, CommandLog, CommandRecord, ParsedRecord
from executors.node.journal import Journal, JournalError, JournalFile
from executors.node.reports import FleetReports, ReportError
from executors.node.room import NoRoomError
from executors.node.runner import Activity, DeviceLostError, Runner, RunnerContext
from schemas.commands import Command, RunDisowned
from schemas.fleet import MAX_HELD_RUNS, CommandRefused, NodeHeartbeat, NodeOnline, RefusalReason

_WAIT_S: dict[Activity, float] = {"working": 0.0, "waiting": 0.1, "idle": 0.25}
"""Time to wait for commands, by the activity of the runners (s)."""
_ROOM_CHECK_S = 5.0
_ROOM_POLL_S = 1.0
_ROOM_LOG_S = 60.0
_NODE_FAULTS = (NoRoomError, DeviceLostError, ReportError, KafkaException)
"""Errors that are not faults of a runner."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class NodeService:
    """Serves one node until it is asked to stop."""

    def __init__(
        self,
        context: RunnerContext,
        runners: Mapping[str, Runner],
        acceptance: Acceptance,
        commands: CommandLog,
        reports: FleetReports,
        journal_file: JournalFile,
        journal: Journal,
        stopping: Callable[[], bool],
    ) -> None:
        """Restore the runners, by name, from their parts of the journal.

        Raises:
            JournalError: a runner rejects its part.
        """
        self._settings = context.settings
        self._room = context.room
        self._clock = context.clock
        self._runners = dict(runners)
        self._acceptance = acceptance
        self._commands = commands
        self._reports = reports
        self._journal_file = journal_file
        self._journal = journal
        self._stopping = stopping
        self._next_room_check_s = 0.0
        self._is_online = False
        for name, runner in runners.items():
            if journal.runners.get(name) is not None:
                try:
                    runner.restore(journal.runners[name])
                except ValueError as error:
                    raise JournalError(f"the journal's part of runner {name}: {error}") from error

    @property
    def online(self) -> NodeOnline:
        """Return the report of a node that can obey commands."""
        settings = self._settings
        return NodeOnline(
            cell=settings.cell,
            node=settings.node,
            base_model=settings.base_model,
            runners=tuple(self._runners),
            runs=tuple(self._held_runs())[:MAX_HELD_RUNS],
        )

    @property
    def heartbeat(self) -> NodeHeartbeat:
        return NodeHeartbeat.model_validate(self.online.model_dump(exclude={"runs"}))

    def serve(self) -> None:
        """Obey commands until the stop signal; then every run is checkpointed and reported.

        Raises:
            NoRoomError: the disks have no room for the node's files; `leave` follows.
            DeviceLostError: only a restart helps.
            ReportError: a report is lost; the journal does not have its cause.
            KafkaException: commands cannot be read.
            OSError: the journal cannot be written.
            Exception: the last runner has failed.
        """
        self.catch_up()
        wait_s = 0.0
        while not self._stopping():
            wait_s = self.turn(wait_s)
        _log.info("node stopping node=%s", self._settings.node)
        for name, runner in list(self._runners.items()):
            self._guarded(name, partial(runner.close, "node_stops"))

    def catch_up(self) -> None:
        """Obey the commands that were there at the start of reading, before any work: a newer one may end the
        run of an older one."""
        self._is_online = True
        while not self._commands.caught_up and not self._stopping():
            self._apply(self._commands.read(_WAIT_S["idle"]))
            self._reports.check()

    def commit(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has every report, then write the journal.

        Raises:
            NoRoomError: the disk has no room for the journal.
            ReportError: a report is lost, or not confirmed in time.
            OSError: the journal cannot be written for another reason.
        """
        self._reports.flush(timeout_s)
        states = {name: self._guarded(name, runner.state) for name, runner in list(self._runners.items())}
        # A runner that has failed keeps its last part.
        parts = {name: state for name, state in states.items() if name in self._runners}
        self._journal = self._journal.model_copy(update={"runners": {**self._journal.runners, **parts}})
        try:
            self._journal_file.save(self._journal)
        except OSError as error:
            refused = self._room.refused(0)
            if refused is None:
                raise
            raise NoRoomError(refused, 0) from error

    def leave(self) -> None:
        """End every run as far as the disks allow. The cell plans the rest again, on other nodes."""
        self._is_online = False
        for name, runner in list(self._runners.items()):
            self._guarded(name, partial(runner.close, "no_room"))

    def await_room(self, shortage: NoRoomError | None, on_shortage: Callable[[str], None]) -> None:
        """Return when the disks have room, or the node is to stop; meanwhile obey only commands that revoke
        work, and refuse the others.

        After a shortage, there must be room for the missing bytes and a reserve, so that the node does not go
        online and offline repeatedly.

        Args:
            shortage: the shortage for which the node left; None at its start.
            on_shortage: called once with the reason of the wait.
        """
        needed_bytes, reserve = (0, 1) if shortage is None else (shortage.needed_bytes, 2)
        while not self._stopping():
            lacking = self._room.lacking(needed_bytes, reserve) or self._room.refused(needed_bytes)
            if lacking is None:
                with suppress(NoRoomError):  # the room may be used up by other programs meanwhile
                    self.commit()
                    self._next_room_check_s = 0.0
                    return
                continue
            if shortage is None:
                shortage, reserve = NoRoomError(lacking, needed_bytes), 2
                on_shortage(lacking)
            now_s = self._clock.time_s()
            if now_s >= self._next_room_check_s:
                self._next_room_check_s = now_s + _ROOM_LOG_S
                _log.warning("node waits node=%s: %s", self._settings.node, lacking)
            for record in self._commands.read(_ROOM_POLL_S):
                accepted = self._accept(self._acceptance.parse(record))
                if accepted is None:
                    continue
                command = accepted.command
                if isinstance(command, RunDisowned) or command.CANCELS:
                    self._obey(command)
                else:
                    self._refuse_for(accepted, command, "no_room", f"the node waits for room: {lacking}")
            self._reports.check()

    def turn(self, wait_s: float) -> float:
        """Let each runner do a piece of its work, with the commands read before each; return the time to wait
        for commands before the next turn (s)."""
        waits_s = [_WAIT_S["idle"]]
        for name in list(self._runners):
            if self._stopping():
                break
            self._apply(self._commands.read(wait_s))
            wait_s = 0.0
            if name in self._runners:
                waits_s.append(_WAIT_S[self._advance(name)])
            self._reports.check()
            self._check_room()
        return min(waits_s)

    def _advance(self, name: str) -> Activity:
        runner = self._runners[name]
        activity = self._guarded(name, runner.advance) or "idle"
        if name in self._runners and runner.state() != self._journal.runners.get(name):
            self.commit()
        return activity

    def _check_room(self) -> None:
        now_s = self._clock.time_s()
        if now_s >= self._next_room_check_s:
            self._next_room_check_s = now_s + _ROOM_CHECK_S
            lacking = self._room.lacking(0)
            if lacking is not None:
                raise NoRoomError(lacking, 0)

    def _apply(self, unparsed: list[CommandRecord]) -> None:
        """Apply commands in order; their position is committed only after all their reports are sent."""
        shortage = None
        records = [self._acceptance.parse(record) for record in unparsed]
        for cancelling in self._acceptance.cancelling(records, self._journal):
            # An earlier one of these commands may end a run, whose result may be published.
            self._obey(cancelling)
        applied: list[AcceptedCommand] = []
        for record in records:
            accepted = self._accept(record)
            if accepted is not None:
                applied.append(accepted)
                try:
                    self._obey(accepted.command)
                except NoRoomError as error:
                    # Runs that are cancelled by later ones of these commands still have to end.
                    shortage = error
                    if isinstance(accepted.command, Command) and not accepted.command.CANCELS:
                        self._refuse_for(accepted, accepted.command, "no_room", str(error))
        for accepted in applied:
            # For a runner that has failed since, its part of the journal has none of these.
            command = accepted.command
            if isinstance(command, Command) and command.RUNNER not in self._runners:
                self._refuse_for_failure(accepted, command)
        if shortage is not None:
            raise shortage
        if records:
            self.commit()

    def _accept(self, record: ParsedRecord) -> AcceptedCommand | None:
        """Accept or refuse a record, and note in the journal that it was handled."""
        read = self._acceptance.accept(record, self._journal)
        self._journal = self._journal.model_copy(update={"next_offset": record.offset + 1})
        if isinstance(read, CommandRefused):
            self._refuse(read)
            return None
        if read is None:
            return None
        is_agreed = isinstance(read.command, RunDisowned) or self._agreed(read, read.command)
        # A refused command that is delivered again is not refused again.
        self._journal = self._journal.with_applied(read.key)
        if not is_agreed:
            return None
        _log.info("command accepted id=%s offset=%d type=%s", read.id, record.offset, read.command.TYPE)
        return read

    def _agreed(self, accepted: AcceptedCommand, command: Command) -> bool:
        """Return whether a command is to be applied. Objections of its runner are reported to the cell."""
        name = command.RUNNER
        runner = self._runners.get(name)
        if runner is None:
            self._refuse_for_failure(accepted, command)
            return False
        objection = self._guarded(name, partial(runner.validate, command))
        if name not in self._runners:
            self._refuse_for_failure(accepted, command)
            return False
        if objection is None:
            return True
        self._refuse_for(accepted, command, objection.kind, objection.detail)
        return objection.kind == "unknown_run"

    def _obey(self, command: Command | RunDisowned) -> None:
        if isinstance(command, RunDisowned):
            for name, each in list(self._runners.items()):
                self._guarded(name, partial(each.disown, command.run_id, command.job_id))
            return
        runner = self._runners.get(command.RUNNER)
        if runner is not None:
            self._guarded(command.RUNNER, partial(runner.apply, command))

    def _held_runs(self) -> Iterator[str]:
        for name, runner in list(self._runners.items()):
            yield from self._guarded(name, runner.held_runs) or ()

    def _refuse_for_failure(self, accepted: AcceptedCommand, command: Command) -> None:
        detail = f"runner {command.RUNNER} has failed since the executor was started"
        self._refuse_for(accepted, command, "runner_failed", detail)

    def _refuse_for(
        self, accepted: AcceptedCommand, command: Command, reason: RefusalReason, detail: str
    ) -> None:
        data = command.model_dump(mode="json")
        self._refuse(self._acceptance.refusal(accepted.id, command.RUNNER, reason, detail, data))

    def _refuse(self, refused: CommandRefused) -> None:
        """Log a refusal and report it, also while the node is offline: a refusal does not bring it online."""
        _log.warning(
            "command refused id=%s topic=%s partition=%d offset=%d runner=%s reason=%s detail=%s",
            *(refused.command_id, self._journal.topic, self._journal.partition),
            *(self._journal.next_offset - 1, refused.runner, refused.reason, refused.detail),
        )
        self._reports.send(refused)

    def _guarded(self, name: str, work: Callable[[], _T]) -> _T | None:
        """Call a runner. If it fails, the others continue without it, and None is returned.

        Raises:
            Exception: the error is the node's, or this was the last runner.
        """
        try:
            return work()
        except _NODE_FAULTS:
            raise
        except Exception as error:
            if len(self._runners) == 1:
                raise
            _log.critical("runner failed runner=%s; the others continue without it", name, exc_info=error)
            del self._runners[name]
            if self._is_online:
                # Types of the remaining runners.
                self._reports.send(self.online)
            return None
