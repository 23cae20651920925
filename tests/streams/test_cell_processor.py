"""The processor of the cells sends records, and waits for confirmation before it sends more."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest

from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from streams.kafka.records import ReadRecord, SentRecord
from streams.worker.cells import Cells, Coverage
from streams.worker.flow import Clients, Clocks, Flow, Limits
from streams.worker.intake import Intake
from streams.worker.processors import CellProcessor
from streams.worker.publication import Outbox, Publication
from streams.worker.snapshots import Snapshots, Suspension
from tests.streams import events

CHANGELOG = "t.snapshots"
PARTITIONS = 2
"""Cells alpha and beta are of the first, zeta of the second."""


class RefusedError(Exception):
    """The broker's error for a record that is too large."""


class Broker:
    """Accepts records, and confirms no snapshot until a test does so."""

    def __init__(self) -> None:
        self.snapshots: list[tuple[bytes, asyncio.Future[int]]] = []
        """Key and confirmation, in the order in which they were sent."""

    async def send(self, record: SentRecord) -> asyncio.Future[int]:
        confirmation: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if record.topic == CHANGELOG:
            assert record.key is not None
            self.snapshots.append((record.key, confirmation))
        else:
            confirmation.set_result(0)
        return confirmation

    async def sent(self, count: int) -> list[bytes]:
        """The keys of all snapshots sent, `count` or more, and whatever follows without the broker's word."""
        while len(self.snapshots) < count:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        return [key for key, _ in self.snapshots]


async def ledger() -> AsyncIterator[ReadRecord]:
    """The events of two cells in partition 0 and of one in partition 1."""
    for partition, cells in ((0, ("alpha", "beta")), (1, ("zeta",))):
        for offset, cell in enumerate(cells):
            envelope = events.envelope(events.configuration(cell), f"{cell}-{offset}")
            headers = tuple(envelope.headers())
            yield ReadRecord("t.ledger", partition, offset, None, cell.encode(), envelope.value, headers)


async def at_once(configuration: CellConfigured) -> None:
    """No cell waits."""


async def folded(broker: Broker) -> tuple[CellProcessor, dict[bytes, bytes], list[tuple[int, int]]]:
    """A processor that has folded the ledger, its table of snapshots, and what it acknowledges."""
    table: dict[bytes, bytes] = {}
    acknowledged: list[tuple[int, int]] = []
    made, _ = processor(broker, table, acknowledged, at_once)
    await made.run(ledger())
    return made, table, acknowledged


def processor(
    broker: Broker,
    table: dict[bytes, bytes],
    acknowledged: list[tuple[int, int]],
    ready_for: Callable[[CellConfigured], Awaitable[None]],
) -> tuple[CellProcessor, Cells]:
    snapshots = SimpleNamespace(data=table, topic=CHANGELOG)
    consumer = SimpleNamespace(
        acknowledge=lambda place, offset: acknowledged.append((place.partition, offset)),
        assignment=set,
    )
    intake = Intake({}, "t.ledger", frozenset(), math.inf, PARTITIONS)
    clocks = Clocks(time.time, time.monotonic)
    cells = Cells(intake, snapshots, ready_for, validates=True)
    flow = Flow(intake, cells, Clients(consumer, broker, snapshots), Limits(100.0, 2**20, 100), clocks)
    outbox = Outbox(broker, Publication("t", {}))
    writer = Snapshots(snapshots, broker, Suspension(60.0, time.monotonic))
    return CellProcessor(flow, cells, outbox, writer, snapshot_every_events=1_000), cells


def test_coverage_follows_confirmed_snapshots_and_precedes_acknowledgement() -> None:
    async def run() -> None:
        broker = Broker()
        processor, table, acknowledged = await folded(broker)
        snapshot = asyncio.create_task(processor.snapshot())
        cells = [b"alpha", b"beta", b"zeta"]
        assert await broker.sent(3) == cells
        for _, confirmation in broker.snapshots[:2]:
            confirmation.set_result(0)
        assert await broker.sent(3) == cells, "one snapshot is not confirmed yet"
        broker.snapshots[2][1].set_result(0)
        assert await broker.sent(5) == [*cells, b"/0", b"/1"]
        assert (table, acknowledged) == ({}, [])
        for _, confirmation in broker.snapshots[3:]:
            confirmation.set_result(0)
        await snapshot
        assert sorted(table) == [b"/0", b"/1", *cells]
        assert acknowledged == [(0, 1), (1, 0)]

    asyncio.run(run())


def test_refused_snapshot_has_no_coverage() -> None:
    async def run() -> None:
        broker = Broker()
        processor, table, acknowledged = await folded(broker)
        snapshot = asyncio.create_task(processor.snapshot())
        await broker.sent(3)
        broker.snapshots[0][1].set_result(0)
        broker.snapshots[1][1].set_exception(RefusedError("too large"))
        broker.snapshots[2][1].set_result(0)
        with pytest.raises(RefusedError):
            await snapshot
        assert await broker.sent(3) == [b"alpha", b"beta", b"zeta"]
        assert (table, acknowledged) == ({}, [])

    asyncio.run(run())


@pytest.mark.parametrize("reassigned", [False, True])
def test_events_of_unready_cell_wait_or_drop(reassigned: bool) -> None:
    async def run() -> None:
        ready = asyncio.Event()
        waiting: list[str] = []

        async def ready_for(configuration: CellConfigured) -> None:
            waiting.append(configuration.cell)
            await ready.wait()

        async def configured_and_ticked() -> AsyncIterator[ReadRecord]:
            async for record in ledger():
                if record.key == b"alpha":
                    yield record
            envelope = events.envelope(ClockTicked(cell="alpha", time_s=100.0), "tick")
            yield ReadRecord("t.ledger", 0, 1, None, b"alpha", envelope.value, tuple(envelope.headers()))

        made, cells = processor(Broker(), {}, [], ready_for)
        folding = asyncio.create_task(made.run(configured_and_ticked()))
        while not waiting:
            await asyncio.sleep(0)
        assert cells.last_offset(0) == 0
        if reassigned:
            await made.release()
        ready.set()
        await folding
        assert waiting == ["alpha"]
        assert cells.last_offset(0) == (-1 if reassigned else 1)

    asyncio.run(run())


def test_foreign_coverage_record_is_dead_letter() -> None:
    async def run() -> None:
        async def foreign() -> AsyncIterator[ReadRecord]:
            yield ReadRecord("t.ledger", 0, 0, None, b"/0", b"foreign", ())

        made, cells = processor(Broker(), {b"/0": Coverage(-1, {}).to_bytes()}, [], at_once)
        await made.run(foreign())
        assert cells.last_offset(0) == 0

    asyncio.run(run())
