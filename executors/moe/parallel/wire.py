"""Small messages between ranks: lines of JSON over a connection that sends each at once."""

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

_LONGEST_MESSAGE_BYTES = 16 * 1024 * 1024


class Wire:
    """One end of a connection. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        # Otherwise a message waits for the acknowledgement of the one before, which the other end delays.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._socket = connection
        self._received = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the file descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, *message: object) -> None:
        """Send a message: a word and its values.

        Raises:
            OSError: the connection is broken.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def receive(self, wait_s: float) -> list[Sequence[Any]]:
        """Return the messages that have arrived; wait for the first one until the timeout.

        Raises:
            OSError: the other end has closed the connection, or it is broken.
        """
        if not wait([self._socket], wait_s):
            return []
        got = self._socket.recv(65536)
        if not got:
            raise ConnectionResetError("the other end has closed the connection")
        self._received += got
        if len(self._received) > _LONGEST_MESSAGE_BYTES:
            raise ConnectionError(f"a message is longer than {_LONGEST_MESSAGE_BYTES} bytes")
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the connection, also during a receive in another thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
