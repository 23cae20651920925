"""Where the processes of a generation find each other, before any of them gives up what it is doing.

The leader opens a key-value store of torch.distributed on a free port of its worker host and writes the
address to a file on the state root, which all nodes share. The others look for the file. Whoever is ready to
train writes this to the store, and waits, or trains on in the generation before, until all are.

The store has no authentication. So the file also holds a secret, drawn for the generation, that is part of
every key: the processes of another generation or program that reach the port change nothing of this one. The
secret cannot be in the command, which is a decision as well, and users may read decisions.
"""

import logging
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

from torch import OutOfMemoryError
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from executors.gang.folder import JobFolder, MeetingAddress
from executors.gang.membership import Membership

_READY = "ready"
_ENTERED = "entered"
_WORD = "word"
_HEARD = "heard"
_CHOICE = "choice"
_FORMED, _DISSOLVED = b"formed", b"dissolved"
_CONNECT_TIMEOUT = timedelta(seconds=5)
_POLL_S = 0.005
_SECRET_BYTES = 32

_log = logging.getLogger(__name__)


class PeerLostError(RuntimeError):
    """Another process of the generation is gone, or does not answer in time."""


@contextmanager
def losses_told() -> Iterator[None]:
    """For what several processes do together: what torch raises there means that one of them is gone."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise PeerLostError(f"another worker is gone: {error}") from error


def open_store(host: str) -> TCPStore:
    """A key-value store that listens at `host` alone; by itself, it would listen on all interfaces.

    Raises:
        OSError: this machine has no such address.
    """
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


class Meeting:
    """One process's part in the coming together of a generation."""

    def __init__(self, membership: Membership, store: Store) -> None:
        self.membership = membership
        self._store = store
        self._is_ready = False
        self._has_entered = False

    @classmethod
    def attend(cls, folder: JobFolder, membership: Membership, host: str) -> Self | None:
        """Open the meeting, if the process leads the generation, or find it; None while it cannot be found.

        Args:
            host: where the others reach this process.
        """
        generation = membership.generation
        if membership.rank == 0:
            store = open_store(host)
            secret = secrets.token_hex(_SECRET_BYTES)
            folder.remove_before(generation - 1)
            folder.write_address(generation, MeetingAddress(host=host, port=store.port, secret=secret))
            return cls(membership, PrefixStore(secret, store))
        address = folder.read_address(generation)
        if address is None:
            return None
        try:
            store = TCPStore(address.host, address.port, is_master=False, timeout=_CONNECT_TIMEOUT)
        except DistStoreError as error:
            place = f"{address.host}:{address.port}"
            _log.info("generation %d does not meet at %s: %s", generation, place, error)
            return None
        return cls(membership, PrefixStore(address.secret, store))

    def store(self, timeout: timedelta) -> Store:
        """Return the store that the process group is formed by."""
        store = PrefixStore("group", self._store)
        store.set_timeout(timeout)
        return store

    def announce(self) -> None:
        """Say that this process has loaded all it needs.

        Raises:
            PeerLostError: the leader is gone; so for all that follow.
        """
        if not self._is_ready:
            self._is_ready = True
            self._add(_READY, 1)

    @property
    def all_ready(self) -> bool:
        """Whether all have announced themselves."""
        return self._add(_READY, 0) >= self.membership.world

    def enter(self) -> None:
        """Say that this process has stopped doing anything else, and forms the group as soon as all have."""
        if not self._has_entered:
            self._has_entered = True
            self._add(_ENTERED, 1)

    @property
    def all_entered(self) -> bool:
        """Whether all have entered, and none has left since: then each of them forms the group."""
        return self._add(_ENTERED, 0) >= self.membership.world and self._choose(_FORMED) == _FORMED

    def leave(self) -> bool:
        """Take `enter` back, as this process is wanted elsewhere; those that wait go on waiting. False if all
        had entered before: then it has to form the group, for the others may be at it."""
        if not self._has_entered:
            return True
        try:
            return self._choose(_DISSOLVED) == _DISSOLVED
        except PeerLostError:
            return True  # the leader is gone, and nobody can form it

    def conclude(self, word: str, timeout_s: float) -> None:
        """Say the last word of the generation, and wait until the others have heard it, for they hear nothing
        any more once this process is gone. Only its leader may.

        Raises:
            PeerLostError: not all have heard it in time.
        """
        with losses_told():
            self._store.set(_WORD, word)
        deadline_s = time.monotonic() + timeout_s
        while self._add(_HEARD, 0) < self.membership.world - 1:
            if time.monotonic() > deadline_s:
                raise PeerLostError(f"not all have heard the last word in {timeout_s:g} s")
            time.sleep(_POLL_S)

    def conclusion(self, timeout_s: float) -> str:
        """The last word of the generation, waited for.

        Raises:
            PeerLostError: the leader is gone, or has not said it in time.
        """
        with losses_told():
            self._store.wait([_WORD], timedelta(seconds=timeout_s))
            word = self._store.get(_WORD)
        self._add(_HEARD, 1)
        return str(word.decode())

    def _choose(self, choice: bytes) -> bytes:
        """Return the choice for the meeting: that of the first process that asks."""
        with losses_told():
            return bytes(self._store.compare_set(_CHOICE, "", choice.decode()))

    def _add(self, name: str, count: int) -> int:
        with losses_told():
            return int(self._store.add(name, count))
