"""Runs a function in one process per rank, each in its place; arguments and results are JSON."""

import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.network.links import NetworkPlace, rate_limited

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
                target=_run, args=(work.__module__, work.__name__, json.dumps(inputs), theirs), daemon=True
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


def _run(module: str, name: str, inputs: str, connection: "Connection[bytes, bytes]") -> None:
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
