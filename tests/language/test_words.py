"""The language of code and pages is that of the glossary."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, pages
from tests.language.words import (
    EMPTY_VERBS,
    GLOSSARY,
    faults,
    glossary_words,
    local_faults,
    name_faults,
    page_faults,
    repetitions,
    string_faults,
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("streams", "solvers", "executors", "schemas", "infra", "bench")
WITH_OTHER_WORDS = {DOCS / "glossary.md", DOCS / "results" / "base-models.md"}
"""Pages that name the replaced words, or quote errors of libraries."""


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_docstrings_and_comments_are_plain(folder: str) -> None:
    found = [str(fault) for path in sorted((ROOT / folder).rglob("*.py")) for fault in faults(path, ROOT)]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_add_to_names(package: str) -> None:
    """Commands are left out: their docstrings are their help."""
    files = [path for path in sorted((ROOT / package).rglob("*.py")) if path.parent.name != "commands"]
    found = [fault for path in files for fault in repetitions(path, ROOT)]
    assert [str(fault) for fault in found] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_strings_are_plain(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert [str(fault) for path in files for fault in string_faults(path, ROOT)] == []


@pytest.mark.parametrize(
    "page", [page for page in pages() if page not in WITH_OTHER_WORDS], ids=lambda page: page.name
)
def test_pages_are_plain(page: Path) -> None:
    assert [str(fault) for fault in page_faults(page, ROOT)] == []


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_names_are_plain(folder: str) -> None:
    found = [fault for path in sorted((ROOT / folder).rglob("*.py")) for fault in name_faults(path, ROOT)]
    assert [str(fault) for fault in found] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_variables_are_plain(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert [str(fault) for path in files for fault in local_faults(path, ROOT)] == []


def test_settings_are_plain() -> None:
    generated = ROOT / "schemas" / "spec"
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.yaml"))]
    files = [path for path in files if path.parent != generated] + [
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    assert len(files) > 20
    assert [str(fault) for path in files for fault in page_faults(path, ROOT)] == []


def test_a_class_name_means_one_thing() -> None:
    names: Counter[str] = Counter()
    for path in product_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert sorted(name for name, count in names.items() if count > 1) == []


def test_no_names_of_files_differ_by_an_s() -> None:
    names = {path.stem for path in product_files()}
    assert sorted(name for name in names if f"{name}s" in names) == []


def test_zone_policies_have_plain_verbs() -> None:
    tree = ast.parse((ROOT / "streams" / "policies" / "policy.py").read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [name for name in names if name.split("_")[0] in EMPTY_VERBS] == []


def test_bold_words_of_the_glossary_are_checked(tmp_path: Path) -> None:
    assert len(glossary_words(GLOSSARY.read_text(encoding="utf-8"))) >= 15
    page = tmp_path / "page.md"
    page.write_text("Jobs stand in line.\nNodes of a crew.\nA pool.\n")
    assert [fault.rule for fault in page_faults(page, tmp_path)] == [
        "'stand in line' is replaced by queue, wait",
        "'crew' is replaced by gang",
    ]


def test_only_prose_of_pages_is_checked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`tell`\n\n```\nsay\n```\nIt says so.\n")
    assert [fault.line for fault in page_faults(page, tmp_path)] == [6]


def test_faults_of_names_are_found(tmp_path: Path) -> None:
    source = tmp_path / "test_module.py"
    source.write_text(
        "def test_a_b_c_d_e_f_g_h_i(): ...\n"
        "def test_it_says_so(told): ...\n"
        "def test_it_takes_long(): ...\n"
        "class HeardNodes:\n    taken: int = 0\n"
        "MOST_STRANGERS = 1\n"
        "import numpy as teacher, torch as taught\n"
        "def is_alive(known): self._wanted = said = takes_profiles\n"
    )
    assert sorted(fault.line for fault in name_faults(source, tmp_path)) == [1, 2, 2, 4, 5, 6, 7, 8]


def test_faults_of_file_names_are_found(tmp_path: Path) -> None:
    source = tmp_path / "test_open_to_strangers.py"
    source.write_text("")
    assert [fault.text for fault in name_faults(source, tmp_path)] == ["test open to strangers"]


def test_faults_of_variables_are_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "class Forecast:\n    foretold: int\n"
        "    def value(self):\n        wanted = told = 1\n"
        "        for said, (knows, _) in (): wanted += 1\n"
        "        return [foretold for foretold in self.x]\n"
        "with open(path) as taken: pass\n"
        "try: pass\nexcept OSError as judged: pass\n"
        "match x:\n    case [told, *strangers]: pass\n"
        "if lodgers := x: pass\n"
    )
    found = sorted(fault.line for fault in local_faults(source, tmp_path))
    assert found == [4, 4, 5, 5, 5, 6, 6, 7, 9, 11, 11, 12]


def test_a_fault_is_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""What it says."""\n\nX = 1  # is none\n"""Begins."""\n')
    found = [(fault.line, fault.rule.split("'")[1]) for fault in faults(source, tmp_path)]
    assert found == [(1, "What"), (1, "say"), (3, "is none")]


def test_repeated_names_are_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        'class TableRow:\n    """A row of the table."""\n'
        'def state_of(job: Job) -> State:\n    """Return the state of a job."""\n'
        'def state_of(job: Job) -> State:\n    """Return the state that a job has reached."""\n'
    )
    assert [fault.line for fault in repetitions(source, tmp_path)] == [1, 3]


def test_faults_of_strings_are_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        '"""It says."""\nA = "tell"\nB = "nodes tell"\nC = f"nodes {tell} say"\nD = "is {told}"\n'
    )
    found = [(fault.line, fault.rule.split("'")[1]) for fault in string_faults(source, tmp_path)]
    assert found == [(3, "tell"), (4, "say")]
