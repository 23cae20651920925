"""The executor process: from its settings to an orderly stop."""

import logging
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

from clients.errors import BrokerError, UnansweredError
from executors.service.clock import Clock, SystemClock
from executors.service.command_log import CommandLog, CommandLogError
from executors.service.heartbeat import Heartbeat
from executors.service.journal import Journal, JournalError, JournalFile
from executors.service.reports import FleetReports
from executors.service.settings import ExecutorSettings
from executors.service.stop_signal import StopRequestedError, StopSignal
from schemas.fleet import NodeHeartbeat, NodeOffline, NodeOnline

if TYPE_CHECKING:
    from executors.service.slot_runner import Workshop

EXIT_FAILED = 1
"""Something went wrong underway; started again, the executor resumes where it was."""
EXIT_UNFIT = 2
"""Settings, folders, model or topics are not fit; starting again does not help."""

_log = logging.getLogger(__name__)


class UnfitError(RuntimeError):
    """What the node is to work with is missing or cannot be used."""


def main(settings: ExecutorSettings) -> None:
    """Serve a node until SIGTERM or SIGINT; returns after an orderly stop. Call it from the main thread.

    Raises:
        SystemExit: with `EXIT_UNFIT` if the executor cannot start as it is set up, and with `EXIT_FAILED` if
            it cannot go on; the log says why.
    """
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
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
    pass unused, one after another.
    """
    identity = {"cell": settings.cell, "node": settings.node}
    node = None
    try:
        with stop.at_once():
            workshop = _load(settings, clock)
        # As heavy as the workshop: it knows the engine.
        from executors.service.node import Node

        reports.send(NodeOnline(**identity, base_model=settings.base_model))
        reports.flush()
        _log.info("node online node=%s boot=%d", settings.node, journal.boot)
        with Heartbeat(reports, NodeHeartbeat(**identity), settings.node_heartbeat_s):
            commands.start(journal.next_offset)
            node = Node(settings.node, workshop, commands, reports, journal_file, journal, stop)
            node.serve()
    except StopRequestedError:
        _log.info("stopped while loading node=%s", settings.node)
    except UnfitError:
        reports.send(NodeOffline(**identity))
        reports.flush(settings.stop_timeout_s)
        raise
    reports.send(NodeOffline(**identity))
    if node is None:
        reports.flush(settings.stop_timeout_s)
    else:
        node.commit(settings.stop_timeout_s)


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
            raise UnfitError(f"{folder}: {error.strerror}") from None


def _boot(journal_file: JournalFile, commands: CommandLog, clock: Clock) -> Journal:
    """Count a start. By the clock, so that ids do not repeat even if the journal is lost."""
    journal = journal_file.load().reading(commands.cluster_id, commands.topic, commands.partition)
    journal = journal.model_copy(update={"boot": max(journal.boot + 1, int(clock.time_s() * 1_000))})
    journal_file.save(journal)
    return journal


def _load(settings: ExecutorSettings, clock: Clock) -> "Workshop":
    """Load torch and the base model: seconds to minutes."""
    try:
        from executors.service.loading import load_workshop

        return load_workshop(settings, clock)
    except Exception as error:
        raise UnfitError(f"the base model cannot be loaded: {type(error).__name__}: {error}") from error


def _end(status: int, error: Exception) -> NoReturn:
    _log.critical("executor ends status=%d error=%s: %s", status, type(error).__name__, error)
    raise SystemExit(status)
