"""Where a deployment keeps what it keeps."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from infra.errors import CommandError
from infra.kafka.data_directory import DataDirectory


def default_data_dir() -> Path:
    """The user's data folder."""
    return user_data_path("millrace")


@dataclass(frozen=True)
class Folders:
    """The folders of one deployment, below one root."""

    root: Path

    @property
    def broker(self) -> Path:
        """Kafka's data."""
        return self.root / "broker"

    @property
    def datasets(self) -> Path:
        """What jobs train on; users put it there."""
        return self.root / "datasets"

    @property
    def adapters(self) -> Path:
        """What was trained."""
        return self.root / "adapters"

    @property
    def executors(self) -> Path:
        """Checkpoints, and what each node has applied."""
        return self.root / "executors"

    @property
    def logs(self) -> Path:
        """What the services print."""
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Held by the process that runs the deployment."""
        return self.root / "deployment.lock"

    @property
    def address(self) -> Path:
        """Where the running broker is."""
        return self.root / "address.json"

    def create(self) -> None:
        """Make what is missing.

        Raises:
            CommandError: a folder cannot be made.
        """
        try:
            for folder in (self.root, self.datasets, self.adapters, self.executors, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from None

    def clear(self) -> None:
        """Remove everything but the datasets.

        Raises:
            CommandError: the log is where it cannot be removed from here.
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
