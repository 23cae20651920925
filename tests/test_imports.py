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
IN_ONE_CIRCLE = (
    {"streams.cell.cell", "streams.cell.recovery"},
    {
        "executors.lora.adapted_pass",
        "executors.lora.base_model",
        "executors.lora.probe.deviation",
        "executors.lora.probe.passes",
        "executors.lora.probe.prove",
    },
)
"""Circles that are left."""
NAMED_UPWARDS = (
    # A manifest names the parts of its policy in all layers; processes that need a part import it.
    r"streams/policies/\w+/kind\.py",
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
    for circle in IN_ONE_CIRCLE:
        for name in circle:
            graph[name] -= circle
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import circle: {' <- '.join(error.args[1])}")


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
