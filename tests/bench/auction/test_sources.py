"""Rows are told apart by all that decides them: code, libraries, and the trace's content."""

import ast
from pathlib import Path

import pytest

from bench.auction.runs.pool import DECIDING, deciding_files, digest_of_sources
from bench.auction.runs.trial import setting_name
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import PaperSetting
from infra.workloads.rows import TraceError

ROOT = Path(__file__).parents[3]
OURS = {"schemas", "solvers", "streams", "infra", "bench"}
DECIDES_NOTHING = {"infra/errors.py"}
HARNESS = {"bench/auction/runs/pool.py"}


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
def test_whatever_a_run_imports_is_part_of_the_digest():
    covered = {str(path.relative_to(ROOT)) for path in deciding_files()}
    for file in covered - HARNESS - {"requirements.lock"}:
        assert imported(ROOT / file) <= covered | DECIDES_NOTHING, file
    assert {"infra/views/board.py", "infra/workloads/auction/bids.py", "requirements.lock"} <= covered


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in DECIDING:
        file = tmp_path / name if "." in name else tmp_path / name / "some.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one")
    return tmp_path


@pytest.mark.parametrize("name", DECIDING)
def test_a_change_of_anything_that_decides_changes_the_digest(checkout, name):
    before = digest_of_sources(checkout)
    (checkout / name if "." in name else checkout / name / "some.py").write_text("other")
    assert digest_of_sources(checkout) != before


def test_other_files_do_not_change_it(checkout):
    before = digest_of_sources(checkout)
    (checkout / "bench" / "charts.py").write_text("one")
    (checkout / "schemas" / "notes.txt").write_text("one")
    assert digest_of_sources(checkout) == before


def traced(path: Path) -> str:
    return setting_name(PaperSetting(trace=TraceArrivals(path, 7)))


def test_a_trace_is_known_by_name_and_content_wherever_it_lies(tmp_path):
    for folder, content in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.csv").write_text(content)
    one, same, other = (traced(tmp_path / folder / "t.csv") for folder in ("one", "same", "other"))
    assert one == same
    assert one != other
    assert one.startswith("trace=t.csv/7/")


def test_a_traces_bytes_are_read_once(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a")
    setting = PaperSetting(trace=TraceArrivals(path, 7))
    name = setting_name(setting)
    path.unlink()
    assert setting_name(setting) == name
    with pytest.raises(TraceError, match=r"t.csv: No such file"):
        traced(path)
