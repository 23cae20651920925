"""How a command finds the deployment that `millrace up` runs on this machine."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.deployment.folders import Folders, default_data_dir


@dataclass(frozen=True)
class Address:
    """Where the broker of a running deployment is."""

    bootstrap_servers: str
    credentials: Path | None
    """The folder of the principals' passwords, where the deployment made them."""


def running_address() -> Address | None:
    """The deployment in `MILLRACE_DATA_DIR` or the default folder; None if none runs."""
    root = Path(os.environ.get("MILLRACE_DATA_DIR") or default_data_dir())
    try:
        fields = json.loads(Folders(root).address.read_text(encoding="utf-8"))
        folder = fields["credentials"]
        address = Address(str(fields["bootstrap_servers"]), None if folder is None else Path(folder))
        return address if psutil.pid_exists(fields["pid"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def published_address(folders: Folders, address: Address) -> Iterator[None]:
    """Let commands find the broker for the length of the block."""
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
