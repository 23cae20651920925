"""The worker process: intake and cells, from start to an orderly stop."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import uvloop
from confluent_kafka.admin import NewTopic

from schemas.access import use_of_topics
from schemas.cells import MAX_SNAPSHOT_BYTES, CellConfigured
from schemas.service_base import EXIT_FAILED, EXIT_UNFIT, SETTINGS_FAULTS, begin_service, described_fault
from schemas.topics import COMMANDS, INPUTS, LEDGER, SNAPSHOTS, topic_name
from streams.cell.rules import RULES, RuleBook, RulesError
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError, UnansweredError
from streams.worker.cells_file import CellsFileError, load_cells
from streams.worker.faust.app import CellsApp
from streams.worker.faust.corrections import correct_clients
from streams.worker.garbage import tune_gc
from streams.worker.settings import LARGEST_RECORD_BYTES, WorkerSettings

_SEGMENT_MS = 10 * 60 * 1000


_ANY_EPOCH_S = 0.0


class PreflightError(Exception):
    """A topic that does not fit a worker. The message is one line."""


def prepare(settings: WorkerSettings, snapshots_topic: str, timeout_s: float = 10.0) -> int:
    """Check the topics, create the snapshots topic if need be, and return the ledger's partition count.

    Raises:
        BrokerError: the broker does not answer, or topics or a right are missing.
        PreflightError: a topic has an invalid configuration or number of partitions.
    """
    admin = Administration(settings, timeout_s)
    use = use_of_topics("worker", settings.topic_prefix)
    of_snapshots = {snapshots_topic: use.pop(snapshots_topic)}
    partitions = admin.require(use, {f"{settings.topic_prefix}.{settings.worker_group}"})
    _check_node_partitions(settings, partitions)
    ledger = partitions[topic_name(settings.topic_prefix, LEDGER)]
    _check_inputs(settings, partitions, ledger)
    if snapshots_topic not in admin.metadata():
        config = _snapshots_config()
        # If another worker creates it first, that topic is left unchanged.
        admin.create([NewTopic(snapshots_topic, ledger, replication_factor=-1, config=config)])
        admin.await_topics([snapshots_topic])
    found = admin.require(of_snapshots)[snapshots_topic]
    if found != ledger:
        raise PreflightError(
            f"topic {snapshots_topic} has {found} partitions and the ledger {ledger}: a cell's snapshot and "
            "its events must lie in the same one"
        )
    _check_snapshots(admin, snapshots_topic)
    return ledger


def _check_inputs(settings: WorkerSettings, partitions: dict[str, int], ledger: int) -> None:
    """Check that the events of a cell reach one worker from all topics."""
    for name in (topic_name(settings.topic_prefix, topic) for topic in INPUTS):
        if partitions[name] != ledger:
            raise PreflightError(
                f"topic {name} has {partitions[name]} partitions and the ledger {ledger}: they must have the "
                "same number, so that a cell's events reach one worker"
            )


def _check_node_partitions(settings: WorkerSettings, partitions: dict[str, int]) -> None:
    commands = topic_name(settings.topic_prefix, COMMANDS)
    for node, partition in sorted(settings.node_partitions.items()):
        if partition >= partitions[commands]:
            raise PreflightError(
                f"node {node} is given partition {partition} of {commands}, which has {partitions[commands]}"
            )


def _snapshots_config() -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "max.message.bytes": str(MAX_SNAPSHOT_BYTES),
        # A starting worker reads all records that are not yet compacted, and so the whole active segment. The
        # segment is therefore only as large as the largest snapshot requires.
        "segment.bytes": str(LARGEST_RECORD_BYTES),
        "segment.ms": str(_SEGMENT_MS),
        "min.cleanable.dirty.ratio": "0.1",
    }


def _check_snapshots(admin: Administration, name: str) -> None:
    config = admin.configs([name])[name]
    for setting in ("cleanup.policy", "max.message.bytes"):
        expected = _snapshots_config()[setting]
        if config[setting] != expected:
            raise PreflightError(f"topic {name}: {setting} is {config[setting]}, expected {expected}")


log = logging.getLogger(__name__)


def run_worker(settings: WorkerSettings | None = None, book: RuleBook = RULES) -> NoReturn:
    """Run a worker until SIGTERM or SIGINT, and end the process.

    The exit status is 0 after an orderly stop, `EXIT_UNFIT` if the worker cannot start with its settings,
    `EXIT_UNANSWERED` if no broker answers at the start, and `EXIT_FAILED` after a failure. A failure is
    described on standard error, with a line per fault.
    """
    try:
        settings = settings or WorkerSettings()
        # From here on only names and policies are used: the configuration itself is read from the ledger.
        cells = load_cells(settings.cells_file, _ANY_EPOCH_S)
        partitions = prepare(settings, topic_name(settings.topic_prefix, SNAPSHOTS))
    except SETTINGS_FAULTS as error:
        _end(EXIT_UNFIT, f"settings: {described_fault(error)}")
    except UnansweredError as error:
        _end(error.exit_status, str(error))
    except (BrokerError, CellsFileError, PreflightError) as error:
        _end(EXIT_UNFIT, str(error))
    begin_service(settings)
    tune_gc()
    # Faust's consumer runs a second loop in its own thread.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    correct_clients()
    asyncio.run(_serve(settings, cells, partitions, book))
    raise AssertionError("a worker ends its own process")


async def _serve(
    settings: WorkerSettings, cells: Sequence[CellConfigured], partitions: int, book: RuleBook
) -> NoReturn:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = CellsApp(settings, cells, partitions, book)
    running = asyncio.create_task(app.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    try:
        if running.done():
            await running
        async with asyncio.timeout(settings.stop_timeout_s):
            await app.close()
    except TimeoutError:
        _end(EXIT_FAILED, f"not stopped within {settings.stop_timeout_s} s")
    except RulesError as error:
        _end(EXIT_UNFIT, str(error))
    except Exception as error:
        log.debug("the worker failed", exc_info=error)
        _end(EXIT_FAILED, f"{type(error).__name__}: {error}")
    _end(0)


def _end(status: int, message: str = "") -> NoReturn:
    """End the process at once.

    After a failure nothing may be sent or acknowledged, and Faust's threads and tasks would continue.
    """
    for line in message.splitlines():
        sys.stderr.write(f"millrace worker: {line}\n")
    sys.stderr.flush()
    logging.shutdown()
    os._exit(status)
