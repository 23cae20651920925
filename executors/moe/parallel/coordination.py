"""The agreement between processes: rank 0 decides, all ranks send it their submissions."""

import json
import logging
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from executors.gang.group import DisagreementError
from executors.gang.meeting import CollectiveLostError
from executors.moe.parallel.agreement import Agreement
from executors.moe.parallel.micro_ops import CollectiveKind
from executors.moe.parallel.scheduler import Order

_LONGEST_MESSAGE_BYTES = 16 * 1024 * 1024
_KEY = "collectives"
_POLL_S = 0.1
_MOST_UNIDENTIFIED = 64
"""Most connections that have sent nothing yet, besides one for each rank; beyond that, the oldest is
closed."""

_GRACE_S = 0.5
"""Extra time for rank 0 to report missing ranks (s)."""

_log = logging.getLogger(__name__)


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


class AgreedOrder(Order):
    """The order of collectives, agreed on by all ranks during the run; on each rank.

    See `Agreement` for its guarantees. A micro-op costs a message to rank 0 and one back.
    """

    def __init__(self, wire: Wire, coordinator: "Coordinator | None", timeout_s: float) -> None:
        self._wire = wire
        self._coordinator = coordinator
        self._timeout_s = timeout_s
        self._granted = dict.fromkeys(CollectiveKind, 0)
        self._finished = dict.fromkeys(CollectiveKind, 0)

    @classmethod
    def connect(
        cls, store: Store, rank: int, world: int, host: str, terms: str, timeout_s: float
    ) -> "AgreedOrder":
        """Connect; all ranks must do so at the same time.

        Args:
            store: store of this group of ranks only.
            host: address at which the others reach rank 0; only rank 0's is used.
            terms: settings and plans that must be the same on all ranks.
            timeout_s: most time by which a rank may be late to a collective.

        Raises:
            CollectiveLostError: a rank does not connect.
            DisagreementError: a rank has other terms.
        """
        store.set_timeout(timedelta(seconds=timeout_s))
        coordinator = Coordinator(world, host, timeout_s) if rank == 0 else None
        try:
            if coordinator is not None:
                store.set(_KEY, json.dumps([*coordinator.address, coordinator.secret]))
            address, port, secret = json.loads(store.get(_KEY))
            wire = Wire(socket.create_connection((address, port), timeout=timeout_s))
            order = cls(wire, coordinator, timeout_s)
            wire.send("join", secret, rank, terms)
            order._await_all(rank, world)
        except (OSError, RuntimeError) as error:
            if coordinator is not None:
                coordinator.close()
            if isinstance(error, CollectiveLostError | DisagreementError):
                raise
            raise CollectiveLostError(f"rank {rank} does not reach rank 0: {error}") from error
        return order

    def submitted(self, kind: CollectiveKind, label: str) -> None:
        """Send a new micro-op of this rank."""
        self._send("submitted", kind, label)

    def expected(self, count: int) -> None:
        """Send the number of all-to-all micro-ops that this rank will soon submit."""
        self._send("expected", count)

    def next(self, wait_s: float) -> CollectiveKind | None:
        """Return the kind to issue next; None if it is not decided after the wait.

        Raises:
            CollectiveLostError: a rank is lost, or late.
            DisagreementError: ranks have different collectives.
        """
        kind = self._granted_kind()
        if kind is None:
            self._receive(wait_s)
            kind = self._granted_kind()
        return kind

    def check(self) -> None:
        """Raise an error if the run of all ranks is over.

        Raises:
            CollectiveLostError: a rank is lost, or late.
            DisagreementError: ranks have different collectives.
        """
        self._receive(0.0)

    def finished(self, kind: CollectiveKind) -> None:
        """Send the end of a micro-op on this rank."""
        self._finished[kind] += 1
        self._send("finished", kind)

    def failed(self, reason: str) -> None:
        """Send the failure of this rank."""
        self._send("failed", reason)

    def close(self) -> None:
        """Disconnect: the others may only do so, too."""
        self._send("leave")
        if self._coordinator is not None:
            self._coordinator.join(self._timeout_s)
            self._coordinator.close()
        self._wire.close()

    def _granted_kind(self) -> CollectiveKind | None:
        # There is at most one: of both kinds, one is granted once the other has ended.
        return next((kind for kind in CollectiveKind if self._finished[kind] < self._granted[kind]), None)

    def _send(self, *message: object) -> None:
        with suppress(OSError):  # if rank 0 is lost, `next` raises the error
            self._wire.send(*message)

    def _await_all(self, rank: int, world: int) -> None:
        deadline_s = time.monotonic() + self._timeout_s + _GRACE_S
        while time.monotonic() < deadline_s:
            if self._receive(_POLL_S):
                return
        raise CollectiveLostError(
            f"rank {rank}: not all {world} ranks have joined within {self._timeout_s:g} s"
        )

    def _receive(self, wait_s: float) -> bool:
        try:
            messages = self._wire.receive(wait_s)
        except OSError as error:
            raise CollectiveLostError(f"rank 0, which decides the order, is gone: {error}") from error
        for word, *rest in messages:
            if word == "go":
                self._granted[CollectiveKind(rest[0])] = rest[1]
            elif word == "disagree":
                raise DisagreementError(rest[0])
            elif word == "lost":
                raise CollectiveLostError(rest[0])
        return bool(messages)


class Coordinator(threading.Thread):
    """Decides for all ranks; a thread of rank 0."""

    def __init__(self, world: int, host: str, timeout_s: float) -> None:
        """Listen, and start.

        Raises:
            OSError: the host has no address to listen at.
        """
        super().__init__(name="collectives-coordinator", daemon=True)
        self.secret = secrets.token_hex(16)
        self._world = world
        self._timeout_s = timeout_s
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._agreement = Agreement(world)
        self._wires: dict[int, Wire] = {}
        self._left: set[int] = set()
        self._progress_s = time.monotonic()
        self._closing = False
        self.start()

    def run(self) -> None:
        """Decide until all ranks have left, or one is lost."""
        try:
            self._gather()
            self._broadcast("begin")
            self._decide()
        except DisagreementError as error:
            self._broadcast("disagree", str(error))
        except CollectiveLostError as error:
            self._broadcast("lost", str(error))
        except Exception as error:
            _log.exception("the coordinator of collectives has failed")
            self._broadcast("lost", f"rank 0 can decide no more: {error}")
        finally:
            self._listener.close()

    def close(self) -> None:
        """End, also if ranks are still connected."""
        self._closing = True
        self.join(10 * _POLL_S)
        for wire in self._wires.values():
            wire.close()

    def _gather(self) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        terms: dict[int, str] = {}
        waiting: deque[Wire] = deque()
        self._listener.setblocking(False)
        while len(self._wires) < self._world and not self._closing:
            sources: list[Any] = [self._listener, *waiting]
            for ready in wait(sources, _POLL_S):
                if isinstance(ready, Wire):
                    if self._has_joined(ready, terms):
                        waiting.remove(ready)
                    continue
                with suppress(OSError):
                    waiting.append(Wire(self._listener.accept()[0]))
            while len(waiting) > self._world + _MOST_UNIDENTIFIED:
                waiting.popleft().close()
            if time.monotonic() > deadline_s:
                absent = sorted(set(range(self._world)) - set(self._wires))
                raise CollectiveLostError(f"ranks {absent} have not come within {self._timeout_s:g} s")
        for wire in waiting:
            wire.close()
        for rank, own in sorted(terms.items()):
            if own != terms[0]:
                raise DisagreementError(f"ranks disagree: rank {rank} has {own!r}, rank 0 has {terms[0]!r}")

    def _has_joined(self, wire: Wire, terms: dict[int, str]) -> bool:
        """Accept or refuse a connection by its first message; False before that has arrived."""
        try:
            messages = wire.receive(0.0)
            if not messages:
                return False
            ((word, secret, rank, own),) = messages
            is_ours = word == "join" and secrets.compare_digest(secret, self.secret)
            is_ours = is_ours and rank in range(self._world) and rank not in self._wires
        except (OSError, ValueError, TypeError, RecursionError):
            is_ours = False
        if not is_ours:
            wire.close()  # an unrelated program that connected to the port
            return True
        self._wires[rank] = wire
        terms[rank] = own
        return True

    def _decide(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, wire in self._wires.items():
                selector.register(wire, selectors.EVENT_READ, rank)
            while len(self._left) < self._world and not self._closing:
                for key, _ in selector.select(_POLL_S):
                    if self._receive(key.data):
                        selector.unregister(self._wires[key.data])
                while (grant := self._agreement.grant()) is not None:
                    self._broadcast("go", grant.kind, grant.up_to)
                self._check_timeout()

    def _receive(self, rank: int) -> bool:
        """Process the messages of a rank; True if it has left."""
        try:
            messages = self._wires[rank].receive(0.0)
        except OSError as error:
            raise CollectiveLostError(f"rank {rank} is gone: {error}") from error
        if self._agreement.is_idle:
            self._progress_s = time.monotonic()
        does: dict[str, Callable[..., Any]] = {
            "submitted": lambda kind, label: self._agreement.submitted(rank, CollectiveKind(kind), label),
            "expected": lambda count: self._agreement.expected(rank, count),
            "finished": lambda kind: self._finish(rank, CollectiveKind(kind)),
            "failed": lambda reason: self._fail(rank, reason),
            "leave": lambda: self._left.add(rank),
        }
        for word, *rest in messages:
            does[word](*rest)
        if self._left and not self._agreement.is_idle:
            raise CollectiveLostError(f"ranks {sorted(self._left)} have left during collectives")
        return rank in self._left

    def _finish(self, rank: int, kind: CollectiveKind) -> None:
        self._agreement.finished(rank, kind)
        self._progress_s = time.monotonic()

    def _fail(self, rank: int, reason: str) -> None:
        raise CollectiveLostError(f"rank {rank} has failed: {reason}")

    def _check_timeout(self) -> None:
        if self._agreement.is_idle or time.monotonic() - self._progress_s <= self._timeout_s:
            return
        raise CollectiveLostError(f"{self._agreement.awaited()} within {self._timeout_s:g} s")

    def _broadcast(self, *message: object) -> None:
        for wire in self._wires.values():
            with suppress(OSError):
                wire.send(*message)
