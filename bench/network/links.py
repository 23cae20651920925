"""Network namespaces joined by rate-limited links, for measurements of ranks that share a network.

Each rank has a namespace with one link to a bridge, which is in a namespace of its own, and a token bucket at
both ends of the link: one limit out of the rank, and one into it, as on a full-duplex port of a switch. All
interfaces are inside the namespaces, so that they are removed with them, and the machine's own network is
unchanged.
"""

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from executors.gang.network import INTERFACE_VARIABLES

_PREFIX = "millrace"
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()
"""Numbers of this process's networks."""
_SUBNET = "10.77.0"
# More than the largest packet of a virtual interface, which would otherwise never pass the bucket.
_BURST_BYTES = 128 * 1024
# Buffer of a port: it keeps what waits at the rate for at most this time, and drops the rest.
_QUEUE_MS = 50


@dataclass(frozen=True)
class NetworkPlace:
    """Network location of a rank.

    Attributes:
        host: its address for the other ranks.
        interface: the network interface that has the address.
        namespace: its network namespace; None for that of the machine.
    """

    host: str
    interface: str
    namespace: str | None = None

    def enter(self) -> None:
        """Move the calling thread, and all that it starts later, into the place.

        Raises:
            OSError: the namespace does not exist, or the process may not enter it.
        """
        os.environ.update(dict.fromkeys(INTERFACE_VARIABLES, self.interface))
        if self.namespace is None:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = os.open(_NAMESPACES / self.namespace, os.O_RDONLY)
        try:
            if libc.setns(descriptor, _CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"network namespace {self.namespace}: {os.strerror(number)}")
        finally:
            os.close(descriptor)


class NoLinksError(RuntimeError):
    """This machine, or this user, cannot have rate-limited links."""


def loopback(world: int) -> list[NetworkPlace]:
    """Return places on the machine's loopback interface, without a limit."""
    return [NetworkPlace("127.0.0.1", "lo")] * world


@contextmanager
def rate_limited(world: int, megabits_per_s: float) -> Iterator[list[NetworkPlace]]:
    """Yield places whose links carry a number of megabits (10^6 bits) per second in each direction.

    Raises:
        NoLinksError: root, `ip` or `tc` is missing, or the kernel refuses; all is removed.
    """
    if os.geteuid() != 0:
        raise NoLinksError("rate-limited links need root: run as root, or measure on loopback")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoLinksError(f"rate-limited links need `{tool}`: install iproute2")
    _remove_orphans()
    name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
    hub, names = f"{name}-hub", [f"{name}-{rank}" for rank in range(world)]
    try:
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for rank, each in enumerate(names):
            _join(hub, each, rank, megabits_per_s)
        yield [NetworkPlace(_address(rank), "eth0", each) for rank, each in enumerate(names)]
    finally:
        for each in (hub, *names):
            _remove(each)


def _join(hub: str, name: str, rank: int, megabits_per_s: float) -> None:
    port = f"port{rank}"
    _run("ip", "netns", "add", name)
    _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    _run("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "address", "add", f"{_address(rank)}/24", "dev", "eth0")
    _run("ip", "-n", name, "link", "set", "eth0", "up")
    for namespace, interface in ((hub, port), (name, "eth0")):
        _run(
            *("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf"),
            *("rate", f"{megabits_per_s:g}mbit", "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"),
        )


def _address(rank: int) -> str:
    return f"{_SUBNET}.{rank + 1}"


def _remove_orphans() -> None:
    """Remove the namespaces of killed processes."""
    with suppress(FileNotFoundError):
        for path in _NAMESPACES.iterdir():
            prefix, _, rest = path.name.partition("-")
            pid = rest.partition("-")[0]
            if prefix == _PREFIX and pid.isdecimal() and not psutil.pid_exists(int(pid)):
                _remove(path.name)


def _remove(name: str) -> None:
    if (_NAMESPACES / name).exists():
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().partition("\n")[0]
        raise NoLinksError(f"rate-limited links: `{' '.join(command)}` failed: {reason}")
