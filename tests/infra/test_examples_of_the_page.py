"""Examples of the pages that need no deployment: commands print the output that the page shows."""

import pytest

from infra.cli import run
from infra.commands.options import CELLS_DIRECTORY

DOCS = CELLS_DIRECTORY.parents[1] / "docs"
PAGES = [*sorted((DOCS / "command-line").glob("*.md")), DOCS / "auction" / "pdftsp.md"]
FIRST_COMMANDS = {
    "a simulation and its replay": pytest.param(
        "millrace simulate --seed 3 --jobs 100", marks=pytest.mark.slow
    ),
    "a tour of pdFTSP": "millrace simulate --cells infra/cells/pdftsp.yaml --seed 1",
    "what if": "millrace simulate --cells infra/cells/demo.yaml --seed 7 --jobs 12",
}
LEFT_OUT = "…"


def block_of(first_command: str) -> list[str]:
    """The lines of the example that begins with a command."""
    page = "".join(page.read_text() for page in PAGES)
    start = page.index(f"$ {first_command}")
    return page[start : page.index("\n```", start)].splitlines()


def words(line: str) -> str:
    """Return the words of a text, without the widths of a table."""
    return " ".join(line.split())


@pytest.mark.parametrize("first_command", FIRST_COMMANDS.values(), ids=FIRST_COMMANDS)
def test_an_example_prints_what_the_page_shows(capsys, monkeypatch, tmp_path, first_command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    printed: list[str] = []
    compared = 0
    for line in block_of(first_command):
        if line.startswith("$ millrace "):
            arguments = line.removeprefix("$ millrace ").replace("infra/cells", str(CELLS_DIRECTORY)).split()
            assert run(arguments) == 0
            printed = [words(each) for each in capsys.readouterr().out.splitlines()]
        elif line.endswith(LEFT_OUT):
            assert any(each.startswith(words(line.removesuffix(LEFT_OUT))) for each in printed), line
        elif not set(line) & set("┌├└┏┡└"):
            assert words(line) in printed
            compared += 1
    assert compared > 10
