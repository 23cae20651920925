"""Data directory of a broker: locked, and formatted once before the first start."""

import base64
import hashlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.kafka.credentials import write_private
from infra.kafka.file_lock import FileLock, LockedError
from schemas.services import OTHERS
from streams.kafka.faults import BrokerError

_BYTES_PER_MIB = 1024 * 1024
_LEAST_FREE_MIB = 64


class DataDirectory:
    """Paths of the files of a broker, and the lock on all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.storage = self.path / "storage"
        self.server_properties = self.path / "server.properties"
        self.log = self.path / "broker.log"
        self.console = self.path / "console.log"
        self.class_archive = self.path / "classes.jsa"
        self.docker_volume = self.path / "docker-volume"
        self.credentials = self.path / "credentials"
        self.lock = FileLock(self.path / "lock")

    @property
    def docker_volume_name(self) -> str:
        """Docker volume with the data of this directory, if Docker runs the broker."""
        return f"millrace-{hashlib.sha256(bytes(self.path)).hexdigest()[:12]}"

    def acquire(self, orphan_timeout_s: float) -> None:
        """Lock the directory, which is made on first use.

        A broker whose owner was killed ends by itself, within a wait of `orphan_timeout_s` at most.

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
            raise self.fault(error) from error

    def check_room(self) -> None:
        """Check the free disk space: on a disk that is almost full, a broker would not run for long.

        Raises:
            BrokerError: too little space is free.
        """
        free_mib = shutil.disk_usage(self.path).free // _BYTES_PER_MIB
        if free_mib < _LEAST_FREE_MIB:
            raise BrokerError(
                f"The data directory {self.path} has {free_mib} MiB free and Kafka needs {_LEAST_FREE_MIB}: "
                "make room, or set MILLRACE_BROKER_DATA_DIR to a directory on another disk"
            )

    def fault(self, error: OSError) -> BrokerError:
        """Return the error about a fault of the file system, with advice."""
        return BrokerError(
            f"Cannot write to the data directory {self.path} ({error.strerror}): "
            "set MILLRACE_BROKER_DATA_DIR to one that can be written"
        )

    @contextmanager
    def acquired(self, orphan_timeout_s: float) -> Iterator[None]:
        """Hold the lock within the block; raises as `acquire` does."""
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


_TIMEOUT_S = 600
"""Timeout of formatting, which takes some seconds on an idle machine."""


def format_storage(
    kafka: list[str], storage_dir: Path, properties: dict[str, str], *, private: bool = False
) -> None:
    """Format `storage_dir` as the storage of a new cluster, unless it exists.

    `kafka` is the Java command to which a main class is added. The storage is renamed to its name when it is
    complete, so a killed process leaves no incomplete storage. If `private`, its files are for their owner
    alone.

    Raises:
        BrokerError: Kafka's tool fails.
    """
    if storage_dir.exists():
        return
    staging = storage_dir.with_name(f"{storage_dir.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    configuration = storage_dir.with_name("format.properties")
    write_properties(configuration, {**properties, "log.dirs": str(staging)})
    command = [
        *kafka,
        "kafka.tools.StorageTool",
        "format",
        "--standalone",
        f"--cluster-id={_new_cluster_id()}",
        f"--config={configuration}",
    ]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            umask=OTHERS if private else -1,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(
            f"Kafka did not format {storage_dir} within {_TIMEOUT_S} s: see the machine's load"
        ) from error
    finally:
        configuration.unlink()
    if answer.returncode != 0:
        shutil.rmtree(staging, ignore_errors=True)
        lines = (answer.stdout + answer.stderr).splitlines() or [f"exit status {answer.returncode}"]
        raise BrokerError("\n".join([f"Kafka could not format {storage_dir}: {lines[-1]}", *lines]))
    staging.rename(storage_dir)


def write_properties(path: Path, properties: dict[str, str]) -> None:
    """Write a Java properties file, for its owner alone: it may have passwords."""
    # A backslash begins an escape in this format.
    lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in properties.items())
    write_private(path, "".join(lines).encode())


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
