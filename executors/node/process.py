"""The executor process: from its settings to an orderly stop."""

import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import FrameType
from typing import NoReturn

from executors.node.commands import Acceptance, CommandLog, CommandLogError
from executors.node.journal import Journal, JournalError, JournalFile
from executors.node.node_service import NodeService
from executors.node.reports import FleetReports, Heartbeat
from executors.node.room import DiskSpace, NoRoomError, is_for_lack_of_room
from executors.node.runner import (
    Clock,
    LoadingInterruptedError,
    Runner,
    RunnerContext,
    RunnerKind,
    UnfitError,
    command_types,
    find_runners,
)
from executors.node.settings import ExecutorSettings
from schemas.fleet import NodeOffline
from schemas.service_base import EXIT_FAILED, EXIT_UNFIT, SETTINGS_FAULTS, begin_service, described_fault
from streams.installation import install_policies
from streams.kafka.faults import BrokerError, UnansweredError

_BYTES_PER_MIB = 1024 * 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOST_PROCESS = (EOFError, ConnectionError, ChildProcessError, ProcessLookupError)
"""Errors that a client of a process, such as the fork server, gets when the process has ended."""

_log = logging.getLogger(__name__)


class SystemClock:
    """The machine's clock. It must be synchronised: cells and nodes use the same time."""

    def time_s(self) -> float:
        return time.time()


class StopRequestedError(BaseException):
    """The process is to stop; `except Exception` must not swallow this."""


class StopSignal:
    """SIGTERM and SIGINT: an orderly stop between two steps, or at once if no step runs."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Interrupt the block when a signal arrives, or has arrived.

        Raises:
            StopRequestedError: a signal has arrived.
        """
        self._at_once = True
        try:
            if self.requested:
                raise StopRequestedError
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- signal's signature
        self.requested = True
        if self._at_once:
            self._at_once = False
            raise StopRequestedError


def serve(node: str | None) -> None:
    """Serve a node, by default that of `MILLRACE_NODE`: see `main`. Settings are variables `MILLRACE_*`.

    Raises:
        SystemExit: see `main`; also with `EXIT_UNFIT` if a setting is invalid.
    """
    try:
        settings = ExecutorSettings() if node is None else ExecutorSettings(node=node)
    except SETTINGS_FAULTS as error:
        sys.stderr.write(f"millrace executor: settings: {described_fault(error)}\n")
        raise SystemExit(EXIT_UNFIT) from None
    main(settings)


def main(settings: ExecutorSettings) -> None:
    """Serve a node until SIGTERM or SIGINT; return after an orderly stop. Call it from the main thread.

    Raises:
        SystemExit: with `EXIT_UNFIT` if the executor cannot start with its settings, with `EXIT_UNANSWERED`
            if no broker answers at the start, and with `EXIT_FAILED` if it cannot continue; the log has the
            reason.
    """
    begin_service(settings)
    install_policies()
    try:
        _run(settings, SystemClock())
    except UnansweredError as error:
        _end(error.exit_status, error)
    except (UnfitError, CommandLogError, BrokerError, JournalError) as error:
        _end(EXIT_UNFIT, error)
    except Exception as error:
        _log.debug("executor failed", exc_info=error)
        _end(EXIT_FAILED, error)
    _log.info("executor stopped node=%s", settings.node)


def _run(settings: ExecutorSettings, clock: Clock) -> None:
    # Cheap checks run before anything heavy is loaded.
    kinds = find_runners(settings)
    room = DiskSpace(
        {"state root": settings.state_root, "output root": settings.output_root},
        settings.least_free_mib * _BYTES_PER_MIB,
    )
    _make_folders(room)
    stop = StopSignal()
    journal_file = JournalFile(settings.state_root / settings.cell / "nodes" / settings.node)
    with (
        stop.installed(),
        journal_file.locked(),
        closing(CommandLog.connect(settings)) as commands,
    ):
        journal = _boot(journal_file, commands, clock)
        reports = FleetReports(settings, journal.boot, clock)
        context = RunnerContext(settings, reports.send, room, clock)
        _serve(context, kinds, stop, commands, journal_file, journal, reports)


def _serve(
    context: RunnerContext,
    kinds: Mapping[str, RunnerKind],
    stop: StopSignal,
    commands: CommandLog,
    journal_file: JournalFile,
    journal: Journal,
    reports: FleetReports,
) -> None:
    """Load the runners, bring the node online, obey commands, and bring it offline.

    It goes online only when it can work: a node that is online gets commands, and their time would pass
    unused during a long load. It is offline while its disks have no room.
    """
    settings = context.settings
    identity = {"cell": settings.cell, "node": settings.node}

    def go_offline(reason: str = "") -> None:
        if reason:
            _log.error("node offline node=%s reason=%s; it waits for room", settings.node, reason)
        reports.send(NodeOffline(**identity, reason=reason))
        reports.flush(settings.stop_timeout_s)

    try:
        with stop.at_once():
            runners = {name: _load(name, kind, context) for name, kind in kinds.items()}
        acceptance = Acceptance(settings.cell, settings.node, command_types(kinds))
        node = NodeService(
            *(context, runners, acceptance, commands, reports, journal_file, journal),
            stopping=lambda: stop.requested,
        )
    except StopRequestedError:
        _log.info("stopped while loading node=%s", settings.node)
        go_offline()
        return
    except (UnfitError, LoadingInterruptedError, JournalError):
        go_offline()
        raise
    commands.start(journal.next_offset)
    shortage = None
    while not stop.requested:
        node.await_room(shortage, go_offline)
        if stop.requested:
            break
        reports.send(node.online)
        reports.flush()
        _log.info("node online node=%s boot=%d", settings.node, journal.boot)
        try:
            with Heartbeat(reports, node.heartbeat, settings.node_heartbeat_s):
                node.serve()
        except NoRoomError as error:
            shortage = error
            node.leave()
            go_offline(str(error))
    go_offline()
    try:
        node.commit(settings.stop_timeout_s)
    except NoRoomError as error:
        _log.error("journal not written node=%s reason=%s", settings.node, error)


def _make_folders(room: DiskSpace) -> None:
    for folder in room.folders.values():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if is_for_lack_of_room(error):
                raise
            raise UnfitError(f"{folder}: {error.strerror}") from None


def _boot(journal_file: JournalFile, commands: CommandLog, clock: Clock) -> Journal:
    """Count a start, by the clock, so that ids do not repeat even if the journal is lost or not writable."""
    journal = journal_file.load().reading(commands.cluster_id, commands.topic, commands.partition)
    return journal.model_copy(update={"boot": max(journal.boot + 1, int(clock.time_s() * 1_000))})


def _load(name: str, kind: RunnerKind, context: RunnerContext) -> Runner:
    """Load a runner.

    Raises:
        LoadingInterruptedError: a process that it needs has been killed meanwhile.
        UnfitError: it cannot be loaded for another reason.
        OSError: a disk is full.
    """
    try:
        return kind.load(context)
    except (LoadingInterruptedError, *_LOST_PROCESS) as error:
        raise LoadingInterruptedError(f"runner {name}: {error or type(error).__name__}") from error
    except Exception as error:
        if is_for_lack_of_room(error):
            raise
        raise UnfitError(f"runner {name} cannot be loaded: {type(error).__name__}: {error}") from error


def _end(status: int, error: Exception) -> NoReturn:
    _log.critical("executor ends status=%d error=%s: %s", status, type(error).__name__, error)
    raise SystemExit(status)
