"""Rate-limited links have the configured rates, and are removed afterwards."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.network import NetworkPlace, NoLinksError, Rank, rate_limited, run_ranks

_NAMESPACES = Path("/run/netns")


def mine() -> list[str]:
    return [path.name for path in _NAMESPACES.glob(f"millrace-{os.getpid()}-*")]


@pytest.fixture
def places() -> Iterator[list[NetworkPlace]]:
    try:
        with rate_limited(2, 80.0) as made:
            yield made
    except NoLinksError as error:
        pytest.skip(str(error))
    assert mine() == []


def exchange(rank: Rank) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    store = dist.FileStore(str(rank.scratch / "store"), rank.world)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world)
    rows = torch.full((2_000_000,), float(rank.rank), dtype=torch.uint8)
    dist.barrier()
    began_s = time.monotonic()
    dist.all_reduce(rows)  # of two ranks, each sends half of it twice
    return {"sum": int(rows[0]), "seconds": time.monotonic() - began_s}


def test_two_megabytes_match_80_megabits_per_second(places: list[NetworkPlace], tmp_path: Path) -> None:
    results = run_ranks(exchange, places, tmp_path, timeout_s=60.0)
    assert [result["sum"] for result in results] == [1, 1]
    # 10 megabytes a second, and a bucket of tokens at the start; never faster, however slow the machine is.
    assert min(result["seconds"] for result in results) > 0.15


def test_nothing_is_left_after_a_failure() -> None:
    try:
        with rate_limited(2, 80.0):
            assert len(mine()) == 3
            raise KeyError("in the block")
    except NoLinksError as error:
        pytest.skip(str(error))
    except KeyError:
        assert mine() == []


def test_leftovers_of_killed_process_are_removed(places: list[NetworkPlace]) -> None:
    program = "import os\nfrom bench.network import rate_limited\nwith rate_limited(1, 80): os._exit(1)"
    killed = subprocess.Popen([sys.executable, "-c", program])
    killed.wait()
    left = _NAMESPACES / f"millrace-{killed.pid}-0-0"
    assert left.exists()
    with rate_limited(1, 80.0):
        assert not left.exists()


def test_missing_root_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoLinksError, match="need root: run as root, or measure on loopback"):
        rate_limited(2, 80.0).__enter__()
