"""Pages and modules that docstrings and comments name exist."""

import ast
import re
from functools import cache

import pytest

from tests.docs.markdown import ROOT
from tests.language.words import comments, docstrings

PACKAGES = ("schemas", "solvers", "streams", "executors", "infra", "bench")
PAGE = re.compile(r"\bdocs/[\w./-]+\.md\b")
MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")
OF_OTHERS = {"alg/scheduler/titan.py", "eplb.py", "token.py", "train.py"}
"""Modules of other projects, of Python and of users."""


@cache
def ends_of_paths() -> set[str]:
    """The last one, two, ... parts of each module's path."""
    paths = (
        path.relative_to(ROOT).parts for each in (*PACKAGES, "tests") for path in (ROOT / each).rglob("*.py")
    )
    return {"/".join(parts[start:]) for parts in paths for start in range(len(parts))}


@pytest.mark.parametrize("package", PACKAGES)
def test_named_pages_and_modules_exist(package: str) -> None:
    lost = []
    for path in sorted((ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for line, text in (*docstrings(ast.parse(source)), *comments(source)):
            names = {name for name in PAGE.findall(text) if not (ROOT / name).exists()}
            names |= set(MODULE.findall(text)) - ends_of_paths() - OF_OTHERS
            lost += [f"{path.relative_to(ROOT)}:{line}: {name}" for name in sorted(names)]
    assert lost == []
