"""The language of the code is that of the glossary."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.language.words import EMPTY_VERBS, faults

ROOT = Path(__file__).parents[2]
PACKAGES = ("streams", "solvers", "executors", "schemas", "infra", "bench")
DOUBLED = ROOT / "tests" / "language" / "doubled_class_names.txt"


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("folder", [*PACKAGES, "tests/language"])
def test_docstrings_and_comments_are_plain(folder: str) -> None:
    found = [str(fault) for path in sorted((ROOT / folder).rglob("*.py")) for fault in faults(path, ROOT)]
    assert found == []


def test_a_class_name_means_one_thing() -> None:
    names: Counter[str] = Counter()
    for path in product_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names.update(
            node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
        )
    doubled = sorted(name for name, count in names.items() if count > 1)
    assert doubled == DOUBLED.read_text().split(), "rename one of two classes; a name only leaves the list"


def test_zone_policies_have_plain_verbs() -> None:
    tree = ast.parse((ROOT / "streams" / "policies" / "policy.py").read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [name for name in names if name.split("_")[0] in EMPTY_VERBS] == []


def test_a_fault_is_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""What it says."""\n\nX = 1  # is none\n"""Begins."""\n')
    found = [(fault.line, fault.rule.split("'")[1]) for fault in faults(source, tmp_path)]
    assert found == [(1, "What"), (1, "say"), (3, "is none")]
