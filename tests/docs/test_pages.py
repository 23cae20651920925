"""Links, sizes and paths of the pages."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT, anchors, broken_links, pages, relative_links

MOST_BYTES = 15 * 1024


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_pages_are_short() -> None:
    results = DOCS / "results"
    sizes = {
        str(page.relative_to(ROOT)): page.stat().st_size for page in pages() if results not in page.parents
    }
    assert [name for name, size in sizes.items() if size > MOST_BYTES] == [], "divide a page that has grown"


def test_changelog_is_one_page() -> None:
    assert (ROOT / "CHANGELOG.md").stat().st_size <= 8 * 1024


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.parent.name != "results"], ids=lambda page: page.name
)
def test_named_paths_exist(page: Path) -> None:
    paths = named_paths(page.read_text(encoding="utf-8"))
    assert sorted(path for path in paths if not list(ROOT.glob(path))) == []


def test_tables_of_modules_name_modules() -> None:
    tables = [table for page in pages() for table in module_tables(page.read_text(encoding="utf-8"))]
    assert len(tables) >= 2
    named = [f"{folder}/{name}.py" for folder, names in tables for name in names]
    assert [path for path in named if not (ROOT / path).exists()] == []


def module_tables(text: str) -> list[tuple[str, list[str]]]:
    """Return the folder and the names in the first column of each table with the heading "module of"."""
    tables = re.findall(r"^\| module of `([^`]+)` \|.*\n\|[-| ]+\n((?:\|.*\n)*)", text, re.MULTILINE)
    return [
        (folder, [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])])
        for folder, rows in tables
    ]


def test_architecture_names_many_paths() -> None:
    assert len(named_paths((DOCS / "architecture.md").read_text(encoding="utf-8"))) > 50


def named_paths(text: str) -> set[str]:
    """Return the paths of code that a page names, but for links, and those with a part in capitals."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    named = re.findall(
        r"(?<![\w/.-])((?:schemas|solvers|streams|executors|infra|bench|tests)/[\w./*-]*)", text
    )
    return {path.rstrip("./") for path in named if not re.search(r"[A-Z]{4}", path)}


def test_flows_have_few_hops() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    flows = [re.findall(r"^ *(\d+)  \S+/", block, re.MULTILINE) for block in text.split("```")[1::2]]
    hops = [[int(number) for number in flow] for flow in flows if flow]
    assert len(hops) == 3
    for flow in hops:
        assert flow == list(range(1, len(flow) + 1))
        assert len(flow) <= 15


def test_anchors_are_those_of_github() -> None:
    text = "# A `b`, c: d\n## A [link](x.md) (e)\n## Twice\n## Twice\n```\n# no heading\n```\n"
    assert anchors(text) == {"a-b-c-d", "a-link-e", "twice", "twice-1"}


def test_code_has_no_links() -> None:
    text = "[a](x.md#b) `[c](y.md)` [d](https://e.org)\n```\n[f](z.md)\n```\n"
    assert relative_links(text) == ["x.md#b"]
