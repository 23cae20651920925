"""The formatting of a broker's storage, done once before its first start."""

import base64
import shutil
import subprocess
import uuid
from pathlib import Path

from infra.kafka.errors import BrokerError
from infra.kafka.private_files import write_private

_TIMEOUT_S = 60


def format_storage(kafka: list[str], storage_dir: Path, properties: dict[str, str]) -> None:
    """Format `storage_dir` as the storage of a new cluster, unless it is there already.

    `kafka` is the Java command to which a main class is added. The storage appears under its name when it
    is complete: a process killed in the middle leaves nothing that the next one would take for a storage.

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
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(
            f"Kafka did not format {storage_dir} within {_TIMEOUT_S} s: see the machine's load"
        ) from error
    if answer.returncode != 0:
        raise BrokerError(f"Kafka could not format {storage_dir}:\n{(answer.stdout + answer.stderr).strip()}")
    configuration.unlink()
    staging.rename(storage_dir)


def write_properties(path: Path, properties: dict[str, str]) -> None:
    """Write a Java properties file, for its owner alone: there may be passwords in it."""
    # In such a file a backslash begins an escape.
    lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in properties.items())
    write_private(path, "".join(lines).encode())


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
