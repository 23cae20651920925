"""The executor process: from its settings to an orderly stop."""

import logging
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

from executors.service.clock import Clock, SystemClock
from executors.service.command_log import CommandLog, CommandLogError
from executors.service.journal import Journal, JournalError, JournalFile
from executors.service.reports import FleetReports, Heartbeat
from executors.service.room import NoRoomError, Room, is_for_want_of_room
from executors.service.settings import ExecutorSettings
from executors.service.stop_signal import StopRequestedError, StopSignal
from schemas.fleet import NodeHeartbeat, NodeOffline, NodeOnline
from schemas.services import begin_log
from streams.kafka.faults import BrokerError, UnansweredError

if TYPE_CHECKING:
    from executors.service.slot_runner import Workshop

EXIT_FAILED = 1
"""Something went wrong underway; started again, the executor resumes where it was."""
EXIT_UNFIT = 2
"""Settings, folders, model or topics are not fit; starting again does not help."""

_BYTES_PER_MIB = 1024 * 1024

_log = logging.getLogger(__name__)


class UnfitError(RuntimeError):
    """What the node is to work with is missing or cannot be used."""


def main(settings: ExecutorSettings) -> None:
    """Serve a node until SIGTERM or SIGINT; returns after an orderly stop. Call it from the main thread.

    Raises:
        SystemExit: with `EXIT_UNFIT` if the executor cannot start as it is set up, and with `EXIT_FAILED` if
            it cannot go on; the log says why.
    """
    begin_log(settings.log_level)
    try:
        _run(settings, SystemClock())
    except UnansweredError as error:
        _end(EXIT_FAILED, error)
    except (UnfitError, CommandLogError, BrokerError, JournalError) as error:
        _end(EXIT_UNFIT, error)
    except Exception as error:
        _log.debug("executor failed", exc_info=error)
        _end(EXIT_FAILED, error)
    _log.info("executor stopped node=%s", settings.node)


def _run(settings: ExecutorSettings, clock: Clock) -> None:
    _check_folders(settings)
    stop = StopSignal()
    journal_file = JournalFile(settings.state_root / settings.cell / "nodes" / settings.node)
    with (
        stop.installed(),
        journal_file.locked(),
        closing(CommandLog.connect(settings)) as commands,
    ):
        journal = _boot(journal_file, commands, clock)
        reports = FleetReports(settings, journal.boot, clock)
        _serve(settings, clock, stop, commands, journal_file, journal, reports)


def _serve(
    settings: ExecutorSettings,
    clock: Clock,
    stop: StopSignal,
    commands: CommandLog,
    journal_file: JournalFile,
    journal: Journal,
    reports: FleetReports,
) -> None:
    """Load what the node works with, bring it online, obey commands, and bring it offline.

    Online only once it can train: a node that is heard gets slots, and those of one that loads for long would
    pass unused, one after another. It is offline while its disks have no room.
    """
    identity = {"cell": settings.cell, "node": settings.node}

    def go_offline(reason: str = "") -> None:
        if reason:
            _log.error("node offline node=%s reason=%s; it waits for room", settings.node, reason)
        reports.send(NodeOffline(**identity, reason=reason))
        reports.flush(settings.stop_timeout_s)

    try:
        with stop.at_once():
            workshop = _load(settings, clock)
    except StopRequestedError:
        _log.info("stopped while loading node=%s", settings.node)
        go_offline()
        return
    except UnfitError:
        go_offline()
        raise
    # As heavy as the workshop: it knows the engine.
    from executors.service.node import Node

    commands.start(journal.next_offset)
    node = Node(settings.node, workshop, commands, reports, journal_file, journal, stop)
    shortage = None
    while not stop.requested:
        node.await_room(shortage, go_offline)
        if stop.requested:
            break
        reports.send(NodeOnline(**identity, base_model=settings.base_model))
        reports.flush()
        _log.info("node online node=%s boot=%d", settings.node, journal.boot)
        try:
            with Heartbeat(reports, NodeHeartbeat(**identity), settings.node_heartbeat_s):
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


def _check_folders(settings: ExecutorSettings) -> None:
    """Refuse early what would fail only after torch is loaded."""
    if not settings.dataset_root.is_dir():
        raise UnfitError(f"dataset root {settings.dataset_root} is no folder")
    if settings.base_model_dir is not None and not (settings.base_model_dir / "config.json").is_file():
        raise UnfitError(f"{settings.base_model_dir}: no Hugging Face model directory")
    for folder in (settings.output_root, settings.state_root):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if is_for_want_of_room(error):
                raise
            raise UnfitError(f"{folder}: {error.strerror}") from None


def _boot(journal_file: JournalFile, commands: CommandLog, clock: Clock) -> Journal:
    """Count a start, by the clock, so that ids do not repeat even if the journal is lost or not writable."""
    journal = journal_file.load().reading(commands.cluster_id, commands.topic, commands.partition)
    return journal.model_copy(update={"boot": max(journal.boot + 1, int(clock.time_s() * 1_000))})


def _load(settings: ExecutorSettings, clock: Clock) -> "Workshop":
    """Load torch and the base model: seconds to minutes."""
    try:
        from executors.service.loading import load_workshop

        folders = {"state root": settings.state_root, "output root": settings.output_root}
        return load_workshop(settings, Room(folders, settings.least_free_mib * _BYTES_PER_MIB), clock)
    except Exception as error:
        if is_for_want_of_room(error):
            raise
        raise UnfitError(f"the base model cannot be loaded: {type(error).__name__}: {error}") from error


def _end(status: int, error: Exception) -> NoReturn:
    _log.critical("executor ends status=%d error=%s: %s", status, type(error).__name__, error)
    raise SystemExit(status)
