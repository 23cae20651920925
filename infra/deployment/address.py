"""How a command finds the deployment that `millrace up` runs on this machine."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.deployment.folders import Folders, default_data_dir


def running_address() -> str | None:
    """Bootstrap servers of the deployment in `MILLRACE_DATA_DIR` or the default folder; None if none runs."""
    root = Path(os.environ.get("MILLRACE_DATA_DIR") or default_data_dir())
    try:
        address = json.loads(Folders(root).address.read_text(encoding="utf-8"))
        return str(address["bootstrap_servers"]) if psutil.pid_exists(address["pid"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def published_address(folders: Folders, bootstrap_servers: str) -> Iterator[None]:
    """Let commands find the broker for the length of the block."""
    fields = {"bootstrap_servers": bootstrap_servers, "pid": os.getpid()}
    folders.address.write_text(json.dumps(fields), encoding="utf-8")
    try:
        yield
    finally:
        folders.address.unlink(missing_ok=True)
