"""A real network: processes, one per rank, in network namespaces joined by rate-limited links.

Each rank has a namespace with one link to a bridge; the bridge has a namespace of its own. A token bucket at
each end of the link limits the traffic out of the rank and into it, as on a full-duplex port of a switch. All
interfaces are inside the namespaces, so that they are removed with them, and the machine's own network is
unchanged. A rank runs a function; its arguments and results are JSON.
"""

import ctypes
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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


MEGABITS_PER_S = 200.0
"""Rate of each limited link, in each direction."""

_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Rank:
    """Arguments of the function.

    Attributes:
        rank: number of the process.
        places: places of all ranks.
        scratch: a folder that all ranks share.
        arguments: the caller's arguments.
    """

    rank: int
    places: Sequence[NetworkPlace]
    scratch: Path
    arguments: dict[str, Any]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.places)

    @property
    def host(self) -> str:
        """Address of this rank."""
        return self.places[self.rank].host


Work = Callable[[Rank], dict[str, Any]]


class RunningRanks:
    """Processes of a run, killed at the end of the context."""

    def __init__(self, work: Work, places: Sequence[NetworkPlace], scratch: Path, **arguments: Any) -> None:
        """Start a process for each place.

        Args:
            work: a function of a module, which is called in each process and returns JSON values.
        """
        # DistributedDataParallel imports torch._dynamo, which takes seconds.
        _context.set_forkserver_preload(["torch.distributed", work.__module__, "torch._dynamo"])
        self.processes = []
        self._ends: list[Connection[bytes, bytes]] = []
        for rank in range(len(places)):
            inputs = {
                "rank": rank,
                "places": [asdict(place) for place in places],
                "scratch": str(scratch),
                "arguments": arguments,
            }
            mine, theirs = _context.Pipe()
            process = _context.Process(
                target=_run_rank,
                args=(work.__module__, work.__name__, json.dumps(inputs), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._ends.append(mine)

    def __enter__(self) -> "RunningRanks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for end in self._ends:
            end.close()

    def results(self, timeout_s: float, among: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return the results of ranks; `{"error": ...}` for a rank that failed.

        Args:
            among: ranks to wait for; all by default.

        Raises:
            TimeoutError: a rank has not ended.
        """
        ranks = range(len(self._ends)) if among is None else among
        deadline_s = time.monotonic() + timeout_s
        left = {self._ends[rank]: rank for rank in ranks}
        results: dict[int, dict[str, Any]] = {}
        while left:
            ready = wait(list(left), max(deadline_s - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"ranks {sorted(left.values())} have not ended in {timeout_s:g} s")
            for end in ready:
                assert isinstance(end, Connection)
                rank = left.pop(end)
                try:
                    results[rank] = json.loads(end.recv_bytes())
                except EOFError:
                    results[rank] = {"error": "the process was killed"}
        return [results[rank] for rank in ranks]


def run_ranks(
    work: Work, places: Sequence[NetworkPlace], scratch: Path, timeout_s: float = 300.0, **arguments: Any
) -> list[dict[str, Any]]:
    """Run a function to its end on each rank, and return all results.

    Raises:
        RuntimeError: it failed on a rank; the message has the rank and the error.
        TimeoutError: it has not ended.
    """
    with RunningRanks(work, places, scratch, **arguments) as ranks:
        results = ranks.results(timeout_s)
    errors = [f"rank {rank}: {result['error']}" for rank, result in enumerate(results) if "error" in result]
    if errors:
        raise RuntimeError("; ".join(errors))
    return results


def _run_rank(module: str, name: str, inputs: str, connection: "Connection[bytes, bytes]") -> None:
    fields = json.loads(inputs)
    places = [NetworkPlace(**place) for place in fields["places"]]
    rank = Rank(fields["rank"], places, Path(fields["scratch"]), fields["arguments"])
    # Before any thread starts, which would stay in the machine's own namespace.
    places[rank.rank].enter()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        result = getattr(importlib.import_module(module), name)(rank)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    connection.send_bytes(json.dumps(result).encode())


def run_on_limited_network(
    work: Work, world: int, timeout_s: float = 600.0, **arguments: Any
) -> tuple[list[dict[str, Any]], str]:
    """Run a function on ranks over links of a limited rate.

    Returns:
        all results, and a description of the network.

    Raises:
        NoLinksError: this machine cannot have such links.
        RuntimeError: it failed on a rank.
        TimeoutError: it has not ended.
    """
    with rate_limited(world, MEGABITS_PER_S) as places, TemporaryDirectory() as scratch:
        results = run_ranks(work, places, Path(scratch), timeout_s, **arguments)
    return results, f"{world} ranks, one thread each, on links of {MEGABITS_PER_S:g} Mbit/s"
