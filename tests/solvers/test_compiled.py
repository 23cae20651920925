"""Compiled code is kept apart for each state of the sources, whichever file it is that changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import solvers


def cache_folder(sources: Path, cache: Path) -> str:
    """Where a fresh process keeps the compiled code of the package below `sources`."""
    command = "import solvers.compiled; from numba import config; print(config.CACHE_DIR)"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(sources)}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", command], env=environment, check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


def test_a_change_in_any_source_leaves_all_compiled_code_behind(tmp_path: Path) -> None:
    shutil.copytree(Path(solvers.__file__).parent, tmp_path / "solvers")
    before = cache_folder(tmp_path, tmp_path / "cache")
    called_from_others = tmp_path / "solvers" / "auction" / "market" / "node_slots.py"
    called_from_others.write_text(called_from_others.read_text() + "\nCHANGED = True\n")

    after = cache_folder(tmp_path, tmp_path / "cache")

    assert Path(before).parent == Path(after).parent == tmp_path / "cache"
    assert before != after
