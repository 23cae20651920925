"""`millrace bench headline`: the figures that the documentation states, from kept figures and short runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.goals import goals
from bench.kept import KeptFigure, KeptFigures
from bench.runs import ROOT
from infra.errors import CommandError, disk_faults

_LIST = Path(__file__).parent / "headline.yaml"
DOCUMENTS = ("docs/benchmarks.md",)
"""Files that include the table, between the two marks."""
PUBLISHED = ROOT / "docs" / "results" / "kept"
"""Published figures, in a folder for each benchmark: they are part of the checkout."""
_BEGIN, _END = "<!-- headline -->", "<!-- /headline -->"
_COMMIT_LETTERS = 9


@dataclass(frozen=True)
class Headline:
    """A figure that the documentation states."""

    bench: str
    name: str
    description: str
    short: bool = False
    """Whether its part may be measured again in the quick form."""

    @property
    def part(self) -> str:
        """Part of the benchmark that measures it."""
        return goals(self.bench)[self.name].part


@dataclass(frozen=True)
class TableRow:
    headline: Headline
    figure: KeptFigure | None
    is_current: bool

    @property
    def state(self) -> str:
        """`current`, `stale` if its sources have changed since, or `missing`."""
        if self.figure is None or self.figure.value is None:
            return "missing"
        return "current" if self.is_current else "stale"


def headlines() -> list[Headline]:
    """Read the figures of `headline.yaml`, in its order."""
    return [Headline(**fields) for fields in yaml.safe_load(_LIST.read_text())["figures"]]


def table_rows(figures: Sequence[Headline], folders: Mapping[str, Sequence[Path]]) -> list[TableRow]:
    """Return the best kept value of each figure: a current one before a stale one, then by folder.

    Args:
        folders: folders of each benchmark, in order of preference.
    """
    kept = {name: [KeptFigures(folder) for folder in of_bench] for name, of_bench in folders.items()}
    return [_best(headline, kept[headline.bench]) for headline in figures]


def _best(headline: Headline, kept: Sequence[KeptFigures]) -> TableRow:
    found = [figure for figures in kept if (figure := figures.find(headline.name)) is not None]
    current = [figure for figure in found if figure.is_current(headline.bench)]
    best = next(iter([*current, *found]), None)
    return TableRow(headline, best, is_current=bool(current))


def run_short(rows: Sequence[TableRow], measure: Callable[[str, str], None]) -> None:
    """Measure the short parts with a figure that is not current; `measure` has a benchmark and a part as
    arguments."""
    due = [row.headline for row in rows if row.headline.short and row.state != "current"]
    for bench, part in dict.fromkeys((headline.bench, headline.part) for headline in due):
        measure(bench, part)


def table(rows: Sequence[TableRow]) -> str:
    """Return the table in Markdown, with a row that names the missing figures."""
    text = ["| figure | value | form | commit | machine | state |", "|---|---|---|---|---|---|"]
    missing = []
    for row in rows:
        name = f"`{row.headline.name}`"
        if row.figure is None or row.figure.value is None:
            missing.append(f"{name} ({row.headline.bench})")
        else:
            text.append(f"| {name}: {row.headline.description} | {' | '.join(_cells(row, row.figure))} |")
    if missing:
        text += ["", f"Missing: {', '.join(missing)}."]
    return "\n".join(text)


def _cells(row: TableRow, figure: KeptFigure) -> Iterator[str]:
    assert figure.value is not None
    unit = "" if figure.unit == "1" else f" {figure.unit}"
    yield f"{figure.value:.3g}{unit}" if figure.value < 1_000 else f"{figure.value:,.0f}{unit}"
    yield "quick" if figure.quick else "full"
    commit, _, changes = figure.commit.partition("+")
    yield f"`{commit[:_COMMIT_LETTERS]}`" + (f" + {changes}" if changes else "")
    yield figure.machine
    yield row.state if row.is_current else f"**{row.state}**"


def publish(rows: Sequence[TableRow], root: Path = PUBLISHED) -> None:
    """Keep the figures of the table with the documents.

    Raises:
        CommandError: a file operation fails.
    """
    for row in rows:
        if row.figure is not None:
            folder = root / row.headline.bench
            with disk_faults(folder):
                folder.mkdir(parents=True, exist_ok=True)
            KeptFigures(folder).keep([row.figure])


def write_into_documents(text: str, root: Path = ROOT) -> None:
    """Replace the table in every document that includes it.

    Raises:
        CommandError: a document lacks the marks, or a file operation fails.
    """
    for name in DOCUMENTS:
        path = root / name
        with disk_faults(path):
            before, begin, rest = path.read_text().partition(_BEGIN)
            _, end, after = rest.partition(_END)
            if not (begin and end):
                raise CommandError(f"{path} has no {_BEGIN} and {_END}, between which the table goes")
            path.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")
