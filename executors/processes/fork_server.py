"""The fork server: a process that has imported torch and nothing else, from which others are forked.

It is multiprocessing's server, and may be shared: a process that was forked from it forks its own processes
from it too. Multiprocessing would start another server, whose imports take five seconds of a core.

`python -P -m executors.processes.fork_server DESCRIPTOR MODULE...` is a separate one, and listens on an
inherited Unix socket. On SIGTERM it ends after all processes that were forked from it.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import forkserver, reduction, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any, cast

from schemas.service_base import require_extra_of

PRELOADED = (
    "torch",
    "torch.distributed",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "peft",
)
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2

_client: Any = forkserver._forkserver


def share() -> None:
    """Let this process use the server that it was forked from, if any."""
    if forkserver.get_inherited_fds() is not None:
        _client.ensure_running = resource_tracker.ensure_running


@contextmanager
def attached(address: Path) -> Iterator[None]:
    """Fork from the server that listens on a Unix socket, within the block."""
    before = dict(_client.__dict__)
    # A server that multiprocessing has started ends when all ends of a pipe are closed.
    with Path(os.devnull).open("rb") as nothing:
        _client._forkserver_address = str(address)
        _client._forkserver_alive_fd = nothing.fileno()
        _client._forkserver_pid = None
        _client.ensure_running = resource_tracker.ensure_running
        try:
            yield
        finally:
            _client.__dict__.clear()
            _client.__dict__.update(before)


@dataclass(frozen=True)
class _Descriptor:
    """A descriptor of this process that a forked process gets too."""

    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (reduction.DupFd(self.number),)


def _detach(duplicate: Any) -> _Descriptor:
    return _Descriptor(cast("int", duplicate.detach()))


@dataclass(frozen=True)
class Surroundings:
    """Variables, umask and console of a process, for one that is forked from a server."""

    environment: Mapping[str, str]
    umask: int
    console: _Descriptor
    """Receives its output."""

    @classmethod
    def of_this_process(
        cls, environment: Mapping[str, str] | None = None, console: int = _STANDARD_ERROR
    ) -> "Surroundings":
        """Return those of this process, optionally with other variables and console."""
        status = Path("/proc/self/status").read_text()
        (umask,) = re.findall(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)
        return cls(
            dict(os.environ if environment is None else environment), int(umask, 8), _Descriptor(console)
        )

    def enter(self) -> None:
        """Apply these to this process, and let SIGTERM end it."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(self.environment)
        os.umask(self.umask)
        for number in (_STANDARD_OUTPUT, _STANDARD_ERROR):
            os.dup2(self.console.number, number)


def main(descriptor: int, modules: list[str]) -> None:
    """Import modules, and fork from this process until SIGTERM.

    Raises:
        SystemExit: on SIGTERM, or if a library is not installed.
    """
    signal.signal(signal.SIGTERM, _end_after_children)
    require_extra_of("fork server", "executors")
    prepare()
    for module in modules:
        import_module(module)
    never_closed, _ = os.pipe()
    forkserver.main(descriptor, never_closed, [])


def _end_after_children(_number: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def prepare() -> None:
    """Set what must be set before torch is imported in a process that others are forked from."""
    # A library that looks for devices during its import must not make a CUDA context, which does not survive
    # a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
