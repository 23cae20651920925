"""Tests, benchmarks and commands read public state (`describe`, `state`), no private attributes."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("schemas", "solvers", "streams", "executors", "infra", "bench")
READERS = ("tests", "bench", "infra")
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Public in spite of their names."""
EXCEPTIONS = {
    "tests/bench/auction/test_day_before.py": (1, "notes the settings that are tried"),
    "tests/bench/auction/test_misreports.py": (3, "reads prices of a simulation, and drops a measurement"),
    "tests/bench/spine/test_paced.py": (1, "shortens a timeout"),
    "tests/executors/elastic/test_failures.py": (1, "closes one end of a pipe of a process"),
    "tests/executors/lora/slots/test_finished_jobs.py": (1, "stops a runner before its last step"),
    "tests/executors/lora/slots/test_slot_runs.py": (1, "reads which checkpoints are there"),
    "tests/executors/node/test_reports.py": (2, "waits for the end of a thread"),
    "tests/infra/lender/test_prometheus.py": (1, "reports without a broker"),
    "tests/integration/test_connections.py": (2, "connects as the broker's own client"),
    "tests/round_robin/cases.py": (1, "shortens a wait"),
    "tests/solvers/auction/posted/test_bound.py": (2, "reads the settled prices, and the number of classes"),
    "tests/solvers/auction/posted/test_day_pattern.py": (2, "counts steps"),
    "tests/solvers/auction/posted/test_posted_plan.py": (1, "computes the least price of a node-slot"),
    "tests/solvers/merging/test_evidence.py": (1, "reads what one undone merge counts"),
    "tests/solvers/merging/test_gain.py": (3, "compares with the problem before its reduction"),
    "tests/solvers/merging/test_growth.py": (3, "lowers a limit of memory, and reads the sampled counts"),
    "tests/solvers/merging/test_merger.py": (2, "lowers limits of memory"),
    "tests/streams/experts/test_placements.py": (2, "compares packed popularity with its count of bytes"),
    "tests/streams/gang/test_tasks_model.py": (1, "compares jobs and tasks with a specification"),
    "tests/streams/merging/test_large_questions.py": (2, "sets up thousands of profiled jobs without events"),
    "tests/streams/test_broken_connections.py": (1, "makes a connection of aiokafka without a broker"),
    "tests/streams/test_faults.py": (1, "makes a zone add a decision that cannot be encoded"),
    "tests/streams/test_faust_transport.py": (3, "puts a consumer of Faust on a virtual broker"),
    "tests/streams/test_live_bytes.py": (5, "fills windows and a certificate without 132,000 events"),
    "tests/support/fork_server.py": (1, "stops the fork server of the standard library"),
    "tests/support/interpreted.py": (2, "counts calls of interpreted kernels"),
    "tests/support/trained_ranks.py": (7, "reads tensors and connections of a rank"),
}
"""Files with the number of their reaches, and why: bytes of a state, a state to which no events lead, faults
in between two steps. Lower the numbers; do not add files."""


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def bound(tree: ast.AST) -> set[str]:
    """Return the private names that a file binds."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return set(filter(is_private, names)) - OF_NAMED_TUPLES


@cache
def private_names() -> frozenset[str]:
    """Return the private names of the product."""
    files = (path for package in PRODUCT for path in (ROOT / package).rglob("*.py"))
    return frozenset(name for path in files for name in bound(ast.parse(path.read_text())))


def reaches(source: str) -> Iterator[str]:
    """Yield the private names of the product that a file uses of others, as attributes or in patches."""
    tree = ast.parse(source)
    foreign = private_names() - bound(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if name in foreign:
                yield name
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr" | "object"), args=args):
                texts = [arg.value for arg in args[:2] if isinstance(arg, ast.Constant)]
                yield from (name for text in texts if (name := str(text).rpartition(".")[2]) in foreign)


def test_only_known_files_reach_into_objects():
    files = (path for folder in READERS for path in sorted((ROOT / folder).rglob("*.py")))
    found = Counter({str(path.relative_to(ROOT)): len([*reaches(path.read_text())]) for path in files})
    assert +found == Counter({file: count for file, (count, _) in EXCEPTIONS.items()})


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("zone._gangs.jobs", 1),
        ("bench.cell.zones['z']._gangs", 1),
        ("monkeypatch.setattr(zone, '_gangs', None)", 1),
        ("monkeypatch.setattr('streams.cell.state_machine.Cell._fold', None)", 1),
        ("self._gangs", 0),
        ("pair._replace(a=1)", 0),
        ("zone.describe()", 0),
        ("class Own:\n    def __init__(self):\n        self._gangs = 1\nown._gangs", 0),
    ],
)
def test_reaches_are_found(source: str, count: int):
    assert len([*reaches(source)]) == count
