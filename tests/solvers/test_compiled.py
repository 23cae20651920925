"""Compiled code is kept apart for each state of the sources, whichever file it is that changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import solvers

DOUBLED = """
import logging
logging.basicConfig(format="%(message)s")
from solvers.elastic.doubled import doubled
print(doubled(4), doubled.stats.cache_path)
"""
"""A program that compiles a kernel, or loads it."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The solvers' sources in a folder of their own, with a kernel that compiles quickly."""
    shutil.copytree(Path(solvers.__file__).parent, tmp_path / "sources" / "solvers")
    (tmp_path / "sources" / "solvers" / "elastic" / "doubled.py").write_text(
        "from solvers.compiled import kernel\n@kernel\ndef doubled(number):\n    return 2 * number\n"
    )
    return tmp_path / "sources"


def ran(program: str, sources: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """A fresh process with these sources and this folder for compiled code."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(sources)}
    return subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, check=True, capture_output=True, text=True
    )


def cache_folders(sources: Path, cache: Path) -> list[str]:
    """Where a fresh process keeps the compiled code of two packages below `sources`."""
    program = (
        "from solvers.auction.market.node_slots import _move_risen; "
        "from solvers.elastic.doubled import doubled; "
        "print(_move_risen.stats.cache_path, doubled.stats.cache_path)"
    )
    return ran(program, sources, cache).stdout.split()


def test_changed_source_discards_compiled_code(sources: Path, tmp_path: Path) -> None:
    auction_before, elastic_before = cache_folders(sources, tmp_path / "cache")
    called_from_others = sources / "solvers" / "auction" / "market" / "node_slots.py"
    called_from_others.write_text(called_from_others.read_text() + "\nCHANGED = True\n")

    auction_after, elastic_after = cache_folders(sources, tmp_path / "cache")

    assert Path(auction_before).parents[1] == Path(auction_after).parents[1] == tmp_path / "cache"
    assert auction_before != auction_after
    assert elastic_before == elastic_after != auction_before


def test_installations_with_the_same_sources_share_compiled_code(sources: Path, tmp_path: Path) -> None:
    first = ran(DOUBLED, sources, tmp_path / "cache").stdout
    files = sorted((tmp_path / "cache").rglob("doubled*"))
    sources.rename(tmp_path / "moved")

    assert ran(DOUBLED, tmp_path / "moved", tmp_path / "cache").stdout == first
    assert sorted((tmp_path / "cache").rglob("doubled*")) == files != []


def test_kernels_are_interpreted_only_in_block(sources: Path, tmp_path: Path) -> None:
    program = """
from solvers.compiled import interpreting
from solvers.elastic.doubled import doubled
with interpreting():
    print(doubled(4), doubled.signatures)
print(doubled(4), len(doubled.signatures))
"""
    assert ran(program, sources, tmp_path / "cache").stdout == "8 []\n8 1\n"


def test_long_interpretation_compiles_within_block(sources: Path, tmp_path: Path) -> None:
    program = """
from solvers.compiled import interpreting
from solvers.elastic.doubled import doubled
with interpreting(most_elements=3):
    for number in range(5):
        print(doubled(number), len(doubled.signatures))
"""
    assert ran(program, sources, tmp_path / "cache").stdout == "0 0\n2 0\n4 0\n6 1\n8 1\n"


def test_unwritable_folder_costs_no_result(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("")
    assert ran(DOUBLED, sources, tmp_path / "no-folder").stdout == "8 None\n"


def test_damaged_code_is_compiled_again(sources: Path, tmp_path: Path) -> None:
    sound = ran(DOUBLED, sources, tmp_path / "cache")
    for file in (tmp_path / "cache").rglob("doubled*.nbc"):
        file.write_bytes(b"damaged")

    damaged = ran(DOUBLED, sources, tmp_path / "cache")

    assert damaged.stdout == sound.stdout
    assert "cannot be read" in damaged.stderr
