"""A broker that parallel test processes share."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from infra.broker import watched_broker
from tests.support.fork_server import SHARED

_POLL_S = 0.1
_MEMORY = Path("/dev/shm")
_LEAST_FREE_BYTES = 4 * 1024**3


@contextmanager
def shared_broker() -> Iterator[str]:
    """Bootstrap servers of one. The first process that asks starts it, and stops it when no other uses it."""
    address = os.environ.get(SHARED)
    if address is None:
        with _broker() as servers:
            yield servers
        return
    folder = Path(address).parent
    servers_file, users = folder / "broker", folder / "users"
    own = users / str(os.getpid())
    users.mkdir(exist_ok=True)
    with _locked(folder):
        if servers_file.exists():
            own.touch()
            started = None
        else:
            started = _broker()
            servers_file.write_text(started.__enter__())
        servers = servers_file.read_text()
    try:
        yield servers
    finally:
        if started is None:
            own.unlink()
        else:
            while True:
                with _locked(folder):
                    if not any(psutil.pid_exists(int(user.name)) for user in users.iterdir()):
                        servers_file.unlink()
                        break
                time.sleep(_POLL_S)
            started.__exit__(None, None, None)


@contextmanager
def _broker() -> Iterator[str]:
    """Bootstrap servers of one whose data are in memory, where it has room: topics, of which tests make
    thousands, take half the processor time there."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES:
                patch.setattr(tempfile, "tempdir", str(_MEMORY))
            servers = stack.enter_context(watched_broker(ephemeral=True)).bootstrap_servers
        yield servers


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
