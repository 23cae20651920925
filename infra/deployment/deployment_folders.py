"""Folders of a deployment, and the address of the one that runs on this machine."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from platformdirs import user_data_path

from infra.errors import CommandError
from infra.kafka.storage import DataDirectory


def default_data_dir() -> Path:
    """Return `MILLRACE_DATA_DIR`, or the user's data folder."""
    return Path(os.environ.get("MILLRACE_DATA_DIR") or user_data_path("millrace"))


class Folders:
    """The folders of one deployment, below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broker = root / "broker"
        """Kafka's data."""
        self.datasets = root / "datasets"
        """Data that jobs train on; users put it there."""
        self.models = root / "models"
        """Hugging Face directories that jobs may name; users put them there."""
        self.adapters = root / "adapters"
        self.executors = root / "executors"
        """Checkpoints, and the applied commands of each node."""
        self.logs = root / "logs"
        """Output of the services."""
        self.lock = root / "deployment.lock"
        self.address = root / "address.json"
        """File with the address of the running broker."""

    def create(self) -> None:
        """Make missing folders.

        Raises:
            CommandError: a folder cannot be made.
        """
        try:
            inside = self.datasets, self.models, self.adapters, self.executors, self.logs
            for folder in (self.root, *inside):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            reason = "there is a file in its place" if is_file else error.strerror
            raise CommandError(
                f"{error.filename}: {reason}: set MILLRACE_DATA_DIR to a folder that can be written"
            ) from None

    def clear(self) -> None:
        """Remove everything but datasets and models.

        Raises:
            CommandError: the log is in a Docker volume, or a folder cannot be removed.
        """
        broker = DataDirectory(self.broker)
        if broker.docker_volume.exists():
            volume = broker.docker_volume_name
            raise CommandError(
                f"the log is in the Docker volume {volume}: `docker volume rm {volume}`, "
                f"then remove {broker.docker_volume}"
            )
        try:
            for folder in (self.broker, self.adapters, self.executors, self.logs):
                if folder.exists():
                    shutil.rmtree(folder)
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from None


@dataclass(frozen=True)
class Address:
    """Address of the broker of a running deployment."""

    bootstrap_servers: str
    credentials: Path | None
    """Folder of the principals' passwords, if the deployment made them."""


def running_address() -> Address | None:
    """Return the address of the deployment in the default folder (`default_data_dir`); None if it is down."""
    try:
        fields = json.loads(Folders(default_data_dir()).address.read_text(encoding="utf-8"))
        folder = fields["credentials"]
        address = Address(str(fields["bootstrap_servers"]), None if folder is None else Path(folder))
        return address if psutil.pid_exists(fields["pid"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def published_address(folders: Folders, address: Address) -> Iterator[None]:
    """Publish the address of the broker for commands within the block."""
    fields = {
        "bootstrap_servers": address.bootstrap_servers,
        "credentials": None if address.credentials is None else str(address.credentials),
        "pid": os.getpid(),
    }
    folders.address.write_text(json.dumps(fields), encoding="utf-8")
    try:
        yield
    finally:
        folders.address.unlink(missing_ok=True)
