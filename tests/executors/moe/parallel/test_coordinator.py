"""Rank 0 accepts messages only from ranks of its group."""

import socket
import time
from collections.abc import Iterator

import pytest

from executors.moe.parallel.coordination import Coordinator, Wire

_HOST = "127.0.0.1"
_WAIT_S = 10.0


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    started = Coordinator(1, _HOST, _WAIT_S)
    yield started
    started.close()


def received(wire: Wire) -> list[object]:
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        if messages := wire.receive(0.1):
            return list(messages)
    raise AssertionError("nothing is received")


@pytest.mark.parametrize(
    "line", [b"17", b"hello", b'["join", 3, 0, ""]', b'["join", "guessed", 0, ""]', b'["go"]']
)
def test_unknown_process_on_port_is_rejected(coordinator: Coordinator, line: bytes) -> None:
    with socket.create_connection(coordinator.address) as stranger:
        stranger.sendall(line + b"\n")
        stranger.settimeout(_WAIT_S)
        assert stranger.recv(1) == b"", "it is disconnected"
    wire = Wire(socket.create_connection(coordinator.address))
    wire.send("join", coordinator.secret, 0, "")
    assert received(wire) == [["begin"]]
    wire.send("leave")
    wire.close()


def test_silent_connections_block_no_rank(coordinator: Coordinator) -> None:
    silent = [socket.create_connection(coordinator.address) for _ in range(100)]
    silent[0].sendall(b"[")
    wire = Wire(socket.create_connection(coordinator.address))
    wire.send("join", coordinator.secret, 0, "")
    assert received(wire) == [["begin"]]
    wire.send("leave")
    wire.close()
    for stranger in silent:
        stranger.close()
