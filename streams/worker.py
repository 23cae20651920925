"""The worker process: intake and cells, from start to an orderly stop. `python -m streams.worker` runs it."""

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import NoReturn

import uvloop
from pydantic import ValidationError

from schemas.codec import describe
from schemas.service_log import begin_log
from schemas.topics import SNAPSHOTS, topic_name
from streams import broken_connections, tolerant_records
from streams.cells_file import CellsFileError, load_cells
from streams.faust_app import CellsApp
from streams.kafka.errors import BrokerError
from streams.preflight import PreflightError, prepare
from streams.settings import WorkerSettings
from streams.warm_up import warm_up

EXIT_FAILED = 1
"""Something went wrong underway; started again, the worker resumes where it was."""
EXIT_UNFIT = 2
"""Settings, the cells' file or the broker's topics are not fit; starting again does not help."""

_ANY_EPOCH_S = 0.0
_GARBAGE_THRESHOLD = 50_000

log = logging.getLogger(__name__)


def run_worker(settings: WorkerSettings | None = None) -> NoReturn:
    """Run a worker until SIGTERM or SIGINT, and end the process.

    The exit status is 0 after an orderly stop, `EXIT_UNFIT` if the worker cannot start as it is set up, and
    `EXIT_FAILED` if it cannot go on; the last two with the reason on standard error, a line for each fault.
    """
    try:
        settings = settings or WorkerSettings()
        # Only the names matter from here on: the configuration itself comes by the ledger.
        cells = frozenset(cell.cell for cell in load_cells(settings.cells_file, _ANY_EPOCH_S))
        partitions = prepare(settings, topic_name(settings.topic_prefix, SNAPSHOTS))
    except ValidationError as error:
        _end(EXIT_UNFIT, f"settings: {describe(error)}")
    except (BrokerError, CellsFileError, PreflightError) as error:
        _end(EXIT_UNFIT, str(error))
    begin_log(settings.log_level)
    warm_up()
    # What is loaded by now stays, and a cell's state has no cycles: looking through it again and again for
    # garbage costs a sixth of a decision's time.
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    # Faust's consumer runs a second loop, in a thread of its own.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    broken_connections.install()
    tolerant_records.install()
    asyncio.run(_serve(settings, cells, partitions))
    raise AssertionError("a worker ends its process itself")


async def _serve(settings: WorkerSettings, cells: frozenset[str], partitions: int) -> NoReturn:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = CellsApp(settings, cells, partitions)
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
    except Exception as error:
        log.debug("the worker failed", exc_info=error)
        _end(EXIT_FAILED, f"{type(error).__name__}: {error}")
    _end(0)


def _end(status: int, message: str = "") -> NoReturn:
    """End the process at once.

    After a failure nothing may be sent or acknowledged any more, and Faust's threads and tasks would go on.
    """
    for line in message.splitlines():
        sys.stderr.write(f"millrace worker: {line}\n")
    sys.stderr.flush()
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    run_worker()
