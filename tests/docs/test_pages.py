"""Links, sizes and paths of the pages."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT, anchors, broken_links, pages, relative_links

MOST_BYTES = 15 * 1024
LONGER = {
    "adding-a-policy.md",
    "benchmarks.md",
    "cell.md",
    "command-line.md",
    "executors.md",
    "schemas.md",
    "streams.md",
}
"""Pages that are still to be divided."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_pages_are_short() -> None:
    results = DOCS / "results"
    sizes = {
        str(page.relative_to(DOCS)): page.stat().st_size
        for page in DOCS.rglob("*.md")
        if results not in page.parents
    }
    long = {name for name, size in sizes.items() if size > MOST_BYTES}
    assert long == LONGER, "divide a page that has grown; remove a page from LONGER once it is short"


def test_changelog_is_one_page() -> None:
    assert (ROOT / "CHANGELOG.md").stat().st_size <= 8 * 1024


def test_architecture_names_existing_paths() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w/.-])((?:schemas|solvers|streams|executors|infra|bench)/[\w./-]*)", text)
    paths = {path.rstrip("./") for path in named}
    assert len(paths) > 50
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


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
