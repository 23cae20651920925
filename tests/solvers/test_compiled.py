"""Compiled code is kept apart for each state of the sources, whichever file it is that changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import solvers


def cache_folders(sources: Path, cache: Path) -> list[str]:
    """Where a fresh process keeps the compiled code of two packages below `sources`."""
    modules = ("solvers.auction.market.price_order", "solvers.elastic.knapsack")
    command = "; ".join(
        ["from numba import config", *(f"import {module}; print(config.CACHE_DIR)" for module in modules)]
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(sources)}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", command], env=environment, check=True, capture_output=True, text=True
    )
    return ran.stdout.split()


def test_a_change_in_any_source_leaves_all_compiled_code_of_its_package_behind(tmp_path: Path) -> None:
    shutil.copytree(Path(solvers.__file__).parent, tmp_path / "solvers")
    auction_before, elastic_before = cache_folders(tmp_path, tmp_path / "cache")
    called_from_others = tmp_path / "solvers" / "auction" / "market" / "node_slots.py"
    called_from_others.write_text(called_from_others.read_text() + "\nCHANGED = True\n")

    auction_after, elastic_after = cache_folders(tmp_path, tmp_path / "cache")

    assert Path(auction_before).parent == Path(auction_after).parent == tmp_path / "cache"
    assert auction_before != auction_after
    assert elastic_before == elastic_after != auction_before
