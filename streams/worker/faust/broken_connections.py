"""Correction of writes to a broken connection, for which uvloop raises an error that aiokafka does not
handle.

asyncio's own loop drops data written to a closed transport; uvloop raises RuntimeError. This ends aiokafka's
metadata task, and all that waits for that task waits forever: a worker whose broker fails at such a moment
would continue to decide, but never again commit or send a heartbeat. Here it is treated as any broken
connection.
"""

from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_send = AIOKafkaConnection.send


def install() -> None:
    """Make every aiokafka client of this process send in this way."""
    AIOKafkaConnection.send = send


def send(connection: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:
    """Send a request, as `AIOKafkaConnection.send`.

    Raises:
        KafkaConnectionError: the connection is closed, or breaks with this.
    """
    try:
        return _send(connection, request, expect_response)
    except RuntimeError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
        raise KafkaConnectionError(
            f"Connection at {connection.host}:{connection.port} broken: {error}"
        ) from error
