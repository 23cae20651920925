"""Links and headings of Markdown pages."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def pages() -> list[Path]:
    """Return the pages that users and maintainers read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def broken_links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page whose file or heading does not exist."""
    for target in relative_links(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not (linked.exists() and (not anchor or anchor in anchors(linked.read_text(encoding="utf-8")))):
            yield target


def relative_links(text: str) -> list[str]:
    """Return the targets of a text's relative links, in order."""
    targets = _LINK.findall(_CODE.sub("", _FENCED.sub("", text)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """Return the anchors of a text's headings, as GitHub makes them."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        plain = _LINK_TEXT.sub(r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def table_after(text: str, heading: str) -> dict[str, str]:
    """Return the second column of a section's first table by its first, without backquotes."""
    section = f"\n{text}"[f"\n{text}".index(f"\n{heading}\n") :]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", section.split("|---|", 1)[1].split("\n\n")[0], re.MULTILINE)
    return {name.strip("`"): value.strip("`") for name, value in rows}
