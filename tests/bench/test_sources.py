"""A kept outcome is of these sources only: whatever a run imports is part of its digest."""

import ast
from pathlib import Path

import pytest

from bench.auction.misreports import PLAYED
from bench.auction.parts import DAYS
from bench.elastic.parts import SIMULATED as ELASTIC
from bench.merging.parts import SIMULATED as MERGING
from bench.runs import ROOT, digest_of, files_of
from bench.suite import SUITES

OURS = {"schemas", "solvers", "streams", "infra", "bench", "executors"}
DECIDES_NOTHING = {"infra/errors.py"}
HARNESS = {f"bench/{name}.py" for name in ("figures", "runs")}
EXPERIMENTS = {"auction": DAYS, "misreports": PLAYED, "elastic": ELASTIC, "merging": MERGING}


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
@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_digest_covers_all_imports_of_run(experiment):
    covered = {str(path.relative_to(ROOT)) for path in files_of(experiment.sources)} - {"requirements.lock"}
    missing = {other: file for file in covered for other in imported(ROOT / file)}
    allowed = covered | DECIDES_NOTHING | HARNESS
    assert missing.keys() <= allowed, {other: file for other, file in missing.items() if other not in allowed}


@pytest.mark.parametrize("name", list(SUITES))
def test_a_suite_measures_itself(name):
    sources = SUITES[name].sources
    assert any(each.startswith(f"bench/{name}") for each in sources)
    assert all((ROOT / each).exists() for each in sources)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in DAYS.sources:
        file = tmp_path / name if "." in name else tmp_path / name / "some.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one")
    return tmp_path


@pytest.mark.parametrize("name", DAYS.sources)
def test_deciding_change_changes_digest(checkout, name):
    before = digest_of(DAYS.sources, checkout)
    (checkout / name if "." in name else checkout / name / "some.py").write_text("other")
    assert digest_of(DAYS.sources, checkout) != before


def test_other_files_do_not_change_it(checkout):
    before = digest_of(DAYS.sources, checkout)
    (checkout / "bench" / "figures.py").write_text("one")
    (checkout / "schemas" / "notes.txt").write_text("one")
    assert digest_of(DAYS.sources, checkout) == before
