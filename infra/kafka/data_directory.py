"""The directory in which a broker keeps its data, and that one process at a time may use."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.kafka.errors import BrokerError
from infra.kafka.file_lock import FileLock, LockedError


class DataDirectory:
    """Where each file of a broker is, and the lock on all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.storage = self.path / "storage"
        self.server_properties = self.path / "server.properties"
        self.log = self.path / "broker.log"
        self.console = self.path / "console.log"
        self.docker_volume = self.path / "docker-volume"
        self.credentials = self.path / "credentials"
        self.lock = FileLock(self.path / "lock")

    @property
    def docker_volume_name(self) -> str:
        """The Docker volume that has the data which belongs here, should Docker run the broker."""
        return f"millrace-{hashlib.sha256(bytes(self.path)).hexdigest()[:12]}"

    def acquire(self, orphan_timeout_s: float) -> None:
        """Lock the directory, made on first use.

        A broker whose owner was killed is on its way out, and waited for up to `orphan_timeout_s`.

        Raises:
            BrokerError: the directory is in use or cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire_lock(orphan_timeout_s)
        except LockedError as error:
            raise BrokerError(
                f"The data directory {self.path} is in use by process {error.holder}: "
                "stop that one, or set MILLRACE_BROKER_DATA_DIR to another directory"
            ) from error
        except OSError as error:
            raise BrokerError(
                f"Cannot write to the data directory {self.path} ({error.strerror}): "
                "set MILLRACE_BROKER_DATA_DIR to one that can be written"
            ) from error

    @contextmanager
    def acquired(self, orphan_timeout_s: float) -> Iterator[None]:
        """Hold the lock for the length of a `with` block; raises as `acquire` does."""
        self.acquire(orphan_timeout_s)
        try:
            yield
        finally:
            self.lock.release()

    def _acquire_lock(self, orphan_timeout_s: float) -> None:
        try:
            self.lock.acquire()
        except LockedError as error:
            if error.holder is not None and psutil.pid_exists(error.holder):
                raise
            self.lock.acquire(orphan_timeout_s)
