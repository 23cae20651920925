"""A broker that the processes which test beside each other share."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from infra.broker import broker
from tests.support.fork_server import SHARED

_POLL_S = 0.1
_MEMORY = Path("/dev/shm")
_LEAST_FREE_BYTES = 4 * 1024**3


@contextmanager
def shared_broker() -> Iterator[str]:
    """Bootstrap servers of one. The first process that asks starts it, and stops it when no other uses it."""
    address = os.environ.get(SHARED)
    if address is None:
        with ExitStack() as stack:
            with _in_memory():
                servers = stack.enter_context(broker(ephemeral=True))
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
            started = broker(ephemeral=True)
            with _in_memory():
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
def _in_memory() -> Iterator[None]:
    """Have temporary folders that the block makes lie in memory, where it has room: topics, of which tests
    make thousands, take a broker half the processor time there."""
    before = tempfile.tempdir
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES:
        tempfile.tempdir = str(_MEMORY)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
