"""A connection that breaks between two requests, under the worker's own event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from streams.worker.faust import corrections

Send = Callable[..., Any]


def send_after_the_transport_closed(send: Send) -> list[str]:
    """Return the error of a sender that is faster than the reader, and whether the connection is closed
    then."""

    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection: Any = AIOKafkaConnection("127.0.0.1", port)
        connection._versions = {MetadataRequest.API_KEY: (0, 0)}
        connection._closed_fut = connection._read_task = loop.create_future()
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        connection._writer.transport.abort()
        await asyncio.sleep(0.1)
        met = []
        try:
            send(connection, MetadataRequest([]))
        except (RuntimeError, KafkaConnectionError) as error:
            met.append(type(error).__name__)
        met.append("closed" if connection._writer is None else "open")
        server.close()
        return met

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def test_broken_connection_raises_error_of_aiokafka() -> None:
    assert send_after_the_transport_closed(corrections.send) == ["KafkaConnectionError", "closed"]


def test_uncorrected_library_keeps_broken_connection() -> None:
    # If this fails, aiokafka or uvloop has mended it, and the module can go.
    assert send_after_the_transport_closed(corrections.send_of_library) == ["RuntimeError", "open"]


def test_closed_connection_is_refused_as_before() -> None:
    async def run() -> None:
        corrections.send(AIOKafkaConnection("127.0.0.1", 9), MetadataRequest([]))

    with pytest.raises(KafkaConnectionError, match="No connection"):
        asyncio.run(run())
