"""Where the processes of a generation find each other, before any of them gives up what it is doing.

The leader opens a key-value store of torch.distributed on a free port and writes its address to a file on the
state root, which all nodes share. The others look for the file. Whoever is ready to train says so in the
store, and waits, or trains on in the generation before, until all are.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict
from torch import OutOfMemoryError
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from executors.node.files import write_file
from executors.workers.membership import Membership

_READY = "ready"
_ENTERED = "entered"
_CONNECT_TIMEOUT = timedelta(seconds=5)

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


class _Address(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: int


class _Failure(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    error: str
    permanent: bool


class JobFolder:
    """What the processes of a job tell each other through the file system."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_address(self, generation: int, host: str, port: int) -> None:
        """Say where a generation meets.

        Raises:
            OSError: the disk failed.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        write_file(self._address(generation), _Address(host=host, port=port).model_dump_json().encode())

    def read_address(self, generation: int) -> tuple[str, int] | None:
        """Where a generation meets; None while nobody has said so."""
        try:
            address = _Address.model_validate_json(self._address(generation).read_bytes())
        except FileNotFoundError:
            return None
        return address.host, address.port

    def write_failure(self, generation: int, error: str, permanent: bool) -> None:
        """Say why a process of a generation ends, for those that will only see that it is gone.

        Raises:
            OSError: the disk failed.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        content = _Failure(error=error, permanent=permanent).model_dump_json().encode()
        write_file(self._failure(generation), content)

    def read_failure(self, generation: int) -> tuple[str, bool] | None:
        """Why a process of a generation has ended and whether that is permanent; None if none has said so."""
        try:
            failure = _Failure.model_validate_json(self._failure(generation).read_bytes())
        except FileNotFoundError:
            return None
        return failure.error, failure.permanent

    def remove_before(self, generation: int) -> None:
        """Remove what older generations have written."""
        for path in self.path.glob("*.json"):
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) < generation:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all of it: the job is over."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _address(self, generation: int) -> Path:
        return self.path / f"{generation}.address.json"

    def _failure(self, generation: int) -> Path:
        return self.path / f"{generation}.failure.json"


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
            store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            folder.remove_before(generation - 1)
            folder.write_address(generation, host, store.port)
            return cls(membership, store)
        address = folder.read_address(generation)
        if address is None:
            return None
        try:
            store = TCPStore(*address, is_master=False, timeout=_CONNECT_TIMEOUT)
        except DistStoreError as error:
            _log.info("generation %d does not meet at %s:%d: %s", generation, *address, error)
            return None
        return cls(membership, store)

    def store(self, timeout: timedelta) -> Store:
        """What the process group is formed by."""
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

    def withdraw(self) -> None:
        """Take `enter` back: this process is wanted elsewhere, and those that wait go on waiting."""
        if self._has_entered:
            self._has_entered = False
            self._add(_ENTERED, -1)

    @property
    def all_entered(self) -> bool:
        """Whether all have entered."""
        return self._add(_ENTERED, 0) >= self.membership.world

    def _add(self, name: str, count: int) -> int:
        with losses_told():
            return int(self._store.add(name, count))
