"""Runs what ranks do, each in a process of its own, on the loopback interface."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.network.links import loopback
from bench.network.ranks import RunningRanks, Work, run_ranks

RunRanks = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path) -> RunRanks:
    """Results of all ranks; fails if one did."""

    def run(work: Work, world: int, **arguments: Any) -> list[dict[str, Any]]:
        return run_ranks(work, loopback(world), tmp_path, timeout_s=120.0, **arguments)

    return run


@pytest.fixture
def run_survivors(tmp_path: Path) -> RunRanks:
    """Results of all ranks but the last."""

    def run(work: Work, world: int, **arguments: Any) -> list[dict[str, Any]]:
        with RunningRanks(work, loopback(world), tmp_path, **arguments) as ranks:
            return ranks.results(120.0, range(world - 1))

    return run
