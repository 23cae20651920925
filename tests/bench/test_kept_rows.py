"""A kept row is of these sources only: whatever a run imports is part of its digest."""

import ast
from pathlib import Path

import pytest

from bench.elastic import runs as elastic
from bench.kept import MEASURED
from bench.merging import runs as merging
from bench.sources import ROOT, files_of

OURS = {"schemas", "solvers", "streams", "infra", "bench", "executors"}
DECIDES_NOTHING = {"infra/errors.py"}


def imported(path: Path) -> set[str]:
    """Files of ours that a file imports, from the root."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    files = {f"{name.replace('.', '/')}.py" for name in names if name.split(".")[0] in OURS}
    return {file for file in files if (ROOT / file).exists()}


@pytest.mark.slow
@pytest.mark.parametrize("deciding", [merging.DECIDING, elastic.DECIDING], ids=["merging", "elastic"])
def test_whatever_a_run_imports_is_part_of_its_digest(deciding):
    covered = {str(path.relative_to(ROOT)) for path in files_of(deciding)} - {"requirements.lock"}
    missing = {other: file for file in covered for other in imported(ROOT / file)}
    assert missing.keys() <= covered | DECIDES_NOTHING, {
        other: file for other, file in missing.items() if other not in covered | DECIDES_NOTHING
    }


@pytest.mark.parametrize("bench", list(MEASURED))
def test_a_benchmark_measures_itself(bench):
    names = MEASURED[bench]
    assert f"bench/{bench}" in names
    assert all((ROOT / name).is_dir() for name in names)
