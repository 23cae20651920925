"""The imports between modules: no circle, and none upwards that is hidden in a string.

import-linter checks the layers themselves (pyproject.toml). These cases also count imports inside
functions, imports for type checkers alone, and names of modules in strings.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS = [layer.split(" | ") for layer in _LINTER["contracts"][0]["layers"]]
"""From the highest to the lowest."""
PACKAGES = _LINTER["root_packages"]
RANK = {package: -place for place, layer in enumerate(LAYERS) for package in layer}
NAMED_UPWARDS = (
    # The command line names the command `bench`, which alone may import the benchmarks.
    r"infra/cli\.py",
)


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                yield part if part in modules() else node.module


def test_no_module_imports_itself_by_way_of_others():
    graph = {
        name: {
            other for other in imported(ast.parse(path.read_text())) if other in modules() and other != name
        }
        for name, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import circle: {' <- '.join(error.args[1])}")


def test_packages_of_executors_form_no_circle():
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        package = package_of(name)
        if package.startswith("executors."):
            others = {package_of(other) for other in imported(ast.parse(path.read_text()))}
            graph.setdefault(package, set()).update(others - {package})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of packages: {' <- '.join(error.args[1])}")


def test_no_string_names_higher_module():
    named = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+(:\w+)?")
    upwards = []
    for name, path in modules().items():
        place = path.relative_to(ROOT).as_posix()
        if any(re.fullmatch(pattern, place) for pattern in NAMED_UPWARDS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = named.fullmatch(node.value)
                if found and RANK[found[1]] > RANK[name.partition(".")[0]]:
                    upwards.append(f"{place}:{node.lineno} {node.value}")
    assert upwards == []


def package_of(module: str) -> str:
    """Return the first two parts of a module's name."""
    return ".".join(module.split(".")[:2])


def programs(tree: ast.AST) -> Iterator[ast.Module]:
    """Yield the programs with imports among a file's strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                yield ast.parse(node.value)
            except SyntaxError:
                continue


def defined(module: str) -> set[str]:
    """Return the names that a module of the product binds."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name)
    return names


def missing(program: ast.AST) -> Iterator[str]:
    """Yield the names that a program imports from the product and that are not there."""
    for node in ast.walk(program):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name in modules() or (ROOT / name.replace(".", "/")).is_dir()
                if not is_module and (node.module not in modules() or alias.name not in defined(node.module)):
                    yield name


def test_programs_in_tests_import_existing_names():
    checked, absent = 0, []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for program in programs(ast.parse(path.read_text())):
            checked += 1
            absent += [f"{path.relative_to(ROOT)}: {name}" for name in missing(program)]
    assert checked > 20
    assert set(absent) <= {"tests/solvers/test_compiled.py: solvers.elastic.doubled.doubled"}, (
        "which it writes"
    )


@pytest.mark.parametrize(
    ("module", "name", "is_missing"),
    [
        ("solvers.experts.placement", "DeviceGroup", False),
        ("solvers.experts.placement", "Cluster", True),
        ("solvers.experts", "placement", False),
        ("solvers.gone", "x", True),
    ],
)
def test_missing_names_of_programs_are_found(module: str, name: str, is_missing: bool):
    assert list(missing(ast.parse(f"from {module} import {name}"))) == [f"{module}.{name}"] * is_missing
