"""Meeting of the ranks of a generation, before any of them stops its present work.

Rank 0 opens a key-value store of torch.distributed on a free port of its worker host and writes the address
to a file on the state root, which all nodes share. The others wait for the file. A rank that is ready to
train writes this to the store, and waits, or continues to train in the generation before, until all are
ready.

The store has no authentication. So the file also holds a secret, drawn for the generation, that is part of
every key: processes of another generation or program that reach the port cannot change this one's keys. The
secret cannot be in the command, which is a decision as well, and users may read decisions.
"""

import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

from torch import OutOfMemoryError
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from executors.gang.folder import JobFolder, MeetingAddress
from executors.gang.messages import Membership

_READY = "ready"
_ENTERED = "entered"
_OUTCOME = "outcome"
_READ = "read"
_CHOICE = "choice"
_FORMED, _DISSOLVED = b"formed", b"dissolved"
_CONNECT_TIMEOUT = timedelta(seconds=5)
_POLL_S = 0.005
_SECRET_BYTES = 32

_log = logging.getLogger(__name__)


class PeerLostError(RuntimeError):
    """Another rank of the generation is lost, or does not answer in time."""


class CollectiveLostError(PeerLostError):
    """A collective cannot end: a rank is lost, stopped, or has not reached it in time."""


class PeerFailedError(PeerLostError):
    """Another rank has written why it does not join, or has not joined in time.

    Attributes:
        is_permanent: whether the job would fail on every node.
    """

    def __init__(self, error: str, is_permanent: bool) -> None:
        super().__init__(error)
        self.is_permanent = is_permanent


@contextmanager
def detecting_loss() -> Iterator[None]:
    """Raise PeerLostError for torch's errors in a collective: they mean that a rank is lost."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise PeerLostError(f"another rank is gone: {error}") from error


@contextmanager
def lost_at(where: str, timeout_s: float) -> Iterator[None]:
    """Add to PeerLostError the place of the loss, and this rank's timeout.

    Raises:
        CollectiveLostError: replaces it.
    """
    try:
        yield
    except CollectiveLostError:
        raise
    except PeerLostError as error:
        reason = str(error).strip().partition("\n")[0]
        raise CollectiveLostError(
            f"{where}: another rank is gone, or has not come within {timeout_s:g} s: {reason}"
        ) from error


def open_store(host: str) -> TCPStore:
    """Return a key-value store that listens at `host` only; torch's own would listen on all interfaces.

    Raises:
        OSError: this machine has no such address.
    """
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


class Meeting:
    """One rank's part in the meeting of a generation."""

    def __init__(self, membership: Membership, store: Store) -> None:
        self.membership = membership
        self._store = store
        self._is_ready = False
        self._has_entered = False

    @classmethod
    def attend(cls, folder: JobFolder, membership: Membership, host: str) -> Self | None:
        """Open the meeting on rank 0, or find it on others; None before it is open.

        Args:
            host: address at which the others reach this rank.
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
        """Return the store for the connection of the process group."""
        store = PrefixStore("group", self._store)
        store.set_timeout(timeout)
        return store

    def announce(self) -> None:
        """Announce that this rank has loaded all that it needs.

        Raises:
            PeerLostError: rank 0 is lost; also raised by all methods below.
        """
        if not self._is_ready:
            self._is_ready = True
            self._add(_READY, 1)

    @property
    def all_ready(self) -> bool:
        """Return whether all ranks have announced themselves."""
        return self._add(_READY, 0) >= self.membership.world

    def enter(self) -> None:
        """Announce that this rank has stopped all other work, and forms the group as soon as all have
        entered."""
        if not self._has_entered:
            self._has_entered = True
            self._add(_ENTERED, 1)

    @property
    def all_entered(self) -> bool:
        """Return whether all have entered, and none has left since: then each of them forms the group."""
        return self._add(_ENTERED, 0) >= self.membership.world and self._choose(_FORMED) == _FORMED

    def leave(self) -> bool:
        """Withdraw `enter`; the others continue to wait. Return false if all had entered before: then this
        rank has to form the group, since the others may be forming it."""
        if not self._has_entered:
            return True
        try:
            return self._choose(_DISSOLVED) == _DISSOLVED
        except PeerLostError:
            return True  # rank 0 is lost, and no rank can form the group

    def conclude(self, outcome: str, timeout_s: float) -> None:
        """Publish the outcome of the generation, as rank 0, and wait until the others have read it, which is
        impossible after the exit of this process.

        Raises:
            PeerLostError: not all have read it in time.
        """
        with detecting_loss():
            self._store.set(_OUTCOME, outcome)
        deadline_s = time.monotonic() + timeout_s
        while self._add(_READ, 0) < self.membership.world - 1:
            if time.monotonic() > deadline_s:
                raise PeerLostError(f"not all have read the outcome in {timeout_s:g} s")
            time.sleep(_POLL_S)

    def conclusion(self, timeout_s: float) -> str:
        """Wait for the outcome of the generation, and return it.

        Raises:
            PeerLostError: rank 0 is lost, or has not published it in time.
        """
        with detecting_loss():
            self._store.wait([_OUTCOME], timedelta(seconds=timeout_s))
            outcome = self._store.get(_OUTCOME)
        self._add(_READ, 1)
        return str(outcome.decode())

    def _choose(self, choice: bytes) -> bytes:
        """Return the choice for the meeting: that of the first rank that calls."""
        with detecting_loss():
            return bytes(self._store.compare_set(_CHOICE, "", choice.decode()))

    def _add(self, name: str, count: int) -> int:
        with detecting_loss():
            return int(self._store.add(name, count))


class Assembly:
    """Meets the other ranks of one generation after another."""

    def __init__(self, folder: JobFolder, host: str, *, reopens: bool = False) -> None:
        """Attend no meeting yet.

        Args:
            folder: folder of the job's meetings.
            host: address at which the others reach this rank.
            reopens: whether a lost rank 0 is restarted, and opens another meeting.
        """
        self._reopens = reopens
        self._folder = folder
        self._host = host
        self._meeting: Meeting | None = None

    def attend(self, membership: Membership) -> Meeting | None:
        """Return the meeting of a generation; None while its rank 0 has not opened it.

        Raises:
            OSError: the disk failed, or this machine does not have the address of its host.
        """
        if self._meeting is None or self._meeting.membership is not membership:
            self._meeting = Meeting.attend(self._folder, membership, self._host)
        return self._meeting

    def come_together(
        self,
        membership: Membership,
        timeout_s: float,
        is_needed: Callable[[], bool],
        commit: Callable[[], None] = lambda: None,
        wait: Callable[[float], None] = time.sleep,
    ) -> Meeting | None:
        """Wait until all ranks have joined, and return the meeting by which they connect.

        Args:
            is_needed: returns whether this rank is still to wait. If not, it still joins if all others have.
            commit: called before others may wait for this rank.
            wait: waits for a time (s), or until something changes.

        Returns:
            None if this rank is no longer to wait, and has left.

        Raises:
            PeerFailedError: another rank failed before, or not all have joined in time.
            PeerLostError: rank 0 is lost, and is not restarted.
        """
        deadline_s = time.monotonic() + timeout_s
        while is_needed():
            try:
                meeting = self.attend(membership)
                if meeting is not None:
                    meeting.announce()
                    commit()
                    meeting.enter()
                    if meeting.all_entered:
                        return meeting
            except PeerLostError:
                if not self._reopens:
                    raise
                self._meeting = None
            note = self._folder.read_failure(membership.generation)
            if note is not None:
                raise PeerFailedError(*note)
            if time.monotonic() > deadline_s:
                raise PeerFailedError(
                    f"not all {membership.world} ranks of generation {membership.generation} have joined in "
                    f"{timeout_s:g} s",
                    is_permanent=False,
                )
            wait(_POLL_S)
        meeting = self._meeting
        if meeting is None or meeting.membership is not membership or meeting.leave():
            return None
        return meeting
