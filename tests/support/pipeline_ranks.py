"""Runs a scenario in one process for each rank of a pipeline; arguments and results are JSON."""

import importlib
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

_LOOPBACK = "127.0.0.1"
_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Rank:
    """Arguments of a scenario."""

    rank: int
    world: int
    port: int
    directory: Path
    """Folder of the base model."""
    dataset_root: Path
    scratch: Path
    arguments: dict[str, Any]

    def store(self) -> TCPStore:
        return TCPStore(_LOOPBACK, self.port, is_master=False, timeout=timedelta(seconds=20))


Scenario = Callable[[Rank], dict[str, Any]]


class RunningRanks:
    """The processes of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        world: int,
        directory: Path,
        dataset_root: Path,
        scratch: Path,
        **arguments: Any,
    ) -> None:
        _context.set_forkserver_preload(
            [
                "torch.distributed",
                "peft",
                "executors.tuner.pipeline.succession",
                "tests.support.pipeline_scenarios",
            ]
        )
        self._store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self.processes = []
        self._ends: list[Connection] = []
        for rank in range(world):
            setup = {
                "rank": rank,
                "world": world,
                "port": self._store.port,
                "directory": str(directory),
                "dataset_root": str(dataset_root),
                "scratch": str(scratch),
                "arguments": arguments,
            }
            mine, theirs = _context.Pipe()
            process = _context.Process(
                target=_run,
                args=(scenario.__module__, scenario.__name__, json.dumps(setup), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._ends.append(mine)

    def word(self, rank: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return the next message of a rank; its error if it failed."""
        if not self._ends[rank].poll(timeout_s):
            raise TimeoutError(f"rank {rank} has said nothing in {timeout_s:g} s")
        word: dict[str, Any] = json.loads(self._ends[rank].recv_bytes())
        return word

    def results(self, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """Return the results of all ranks, or the error of each."""
        deadline_s = time.monotonic() + timeout_s
        left = {end: rank for rank, end in enumerate(self._ends)}
        results: dict[int, dict[str, Any]] = {}
        while left:
            ready = wait(list(left), max(deadline_s - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"ranks {sorted(left.values())} have not ended in {timeout_s:g} s")
            for end in ready:
                rank = left.pop(end)
                try:
                    results[rank] = json.loads(end.recv_bytes())
                except EOFError:
                    results[rank] = {"error": "killed"}
        return [results[rank] for rank in range(len(self._ends))]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for end in self._ends:
            end.close()


def run_ranks(
    scenario: Scenario, world: int, directory: Path, dataset_root: Path, scratch: Path, **arguments: Any
) -> list[dict[str, Any]]:
    """Run a scenario to its end and return what each rank returned; fails if one did."""
    ranks = RunningRanks(scenario, world, directory, dataset_root, scratch, **arguments)
    try:
        results = ranks.results()
    finally:
        ranks.close()
    errors = [f"rank {rank}: {result['error']}" for rank, result in enumerate(results) if "error" in result]
    assert not errors, "; ".join(errors)
    return results


def _run(module: str, name: str, setup: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    fields = json.loads(setup)
    rank = Rank(**fields | {field: Path(fields[field]) for field in ("directory", "dataset_root", "scratch")})
    try:
        result = getattr(importlib.import_module(module), name)(rank)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    connection.send_bytes(json.dumps(result).encode())
