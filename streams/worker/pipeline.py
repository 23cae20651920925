"""Assembly of the parts of a worker between Kafka's topics."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any

from schemas.cells import CellConfigured
from schemas.topics import FLEET, topic_name
from streams.kafka.records import ReadRecord
from streams.worker.adoption import Adoption
from streams.worker.cells import Cells, ReadyFor
from streams.worker.flow import Clients, Clocks, Flow, Limits
from streams.worker.intake import Intake
from streams.worker.node_watch import NodeWatch
from streams.worker.processors import CellProcessor, IntakeProcessor
from streams.worker.publication import Outbox, Publication
from streams.worker.settings import WorkerSettings
from streams.worker.snapshots import Snapshots, Suspension

_WATCH_EVERY_S = 0.5
_DRAIN_POLL_S = 0.02


class Pipeline:
    """Passes records from input topics through ledger and cells to decisions; `flow` describes the steps."""

    def __init__(
        self,
        settings: WorkerSettings,
        intake: Intake,
        clients: Clients,
        ready_for: ReadyFor,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin without events.

        Args:
            ready_for: see `Cells`.
            count: see `Outbox`.
        """
        prefix, clocks = settings.topic_prefix, Clocks(time.time, time.monotonic)
        self._settings = settings
        self._publisher = clients.publisher
        self._cells = Cells(intake, clients.snapshots, ready_for, settings.validate_cells)
        self._flow = Flow(
            intake,
            self._cells,
            clients,
            Limits(
                settings.intake_writer_events_per_s,
                settings.intake_waiting_mib * 2**20,
                settings.intake_buffer_events,
            ),
            clocks,
        )
        self._nodes = NodeWatch(self._flow, self._cells, topic_name(prefix, FLEET))
        self._intake = IntakeProcessor(self._flow, self._nodes)
        self._suspension = Suspension(settings.session_timeout_s - settings.heartbeat_s, clocks.monotonic_s)
        self._processor = CellProcessor(
            self._flow,
            self._cells,
            Outbox(clients.publisher, Publication(prefix, settings.node_partitions), count),
            Snapshots(clients.snapshots, clients.publisher, self._suspension),
            settings.snapshot_every_events,
        )
        self._adoption = Adoption(self._flow, self._cells, self._processor, clients.publisher, prefix)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks besides the reading of topics. None returns; an exception ends the worker."""
        return [
            self._publisher.settle_regularly(),
            self._intake.send_on(),
            self._flow.acknowledge_confirmed(),
            self._nodes.run(),
            self._adoption.run(),
            self._processor.snapshot_regularly(self._settings.snapshot_every_s),
            self._suspension.watch(_WATCH_EVERY_S),
        ]

    async def read_inputs(self, records: AsyncIterable[ReadRecord]) -> None:
        await self._intake.run(records)

    async def read_ledger(self, records: AsyncIterable[ReadRecord]) -> None:
        """Process the records of the ledger; see `CellProcessor.run` for its errors."""
        await self._processor.run(records)

    def configurations(self) -> list[CellConfigured]:
        """Return the configurations of cells of which an event was folded here."""
        cells = map(self._cells.cell, self._cells.names())
        return [cell.configuration for cell in cells if cell is not None and cell.configuration is not None]

    async def drain(self, timeout_s: float) -> None:
        """Send no more events to the ledger, and fold it to its end.

        Then a worker with other rules finds no events after the snapshots that only the present rules can
        decide. After the timeout, the rest is left to the next worker.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._flow.stop()
                while not self._flow.is_empty():
                    await asyncio.sleep(_DRAIN_POLL_S)

    async def flush(self) -> None:
        """Secure and acknowledge all records that were read."""
        await self._flow.flush()
        await self._processor.snapshot()

    async def release(self) -> None:
        """Forget all cells and events, as partitions are reassigned."""
        self._flow.release()
        self._nodes.release()
        await self._processor.release()
