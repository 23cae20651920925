"""Writing to a connection that has just broken, for which uvloop raises an error that aiokafka does not
handle.

asyncio's own loop drops data written to a closed transport; uvloop raises RuntimeError. This ends aiokafka's
metadata task, and whatever waits for that task waits forever: a worker whose broker dies at such a moment
would go on deciding, but never again commit or send a heartbeat. Here it is treated as any broken connection.
"""

from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_send = AIOKafkaConnection.send


def install() -> None:
    """Have every aiokafka client of this process send in this way."""
    AIOKafkaConnection.send = send


def send(connection: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:
    """`AIOKafkaConnection.send`.

    Raises:
        KafkaConnectionError: if the connection is closed, or breaks with this.
    """
    try:
        return _send(connection, request, expect_response)
    except RuntimeError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
        raise KafkaConnectionError(
            f"Connection at {connection.host}:{connection.port} broken: {error}"
        ) from error
