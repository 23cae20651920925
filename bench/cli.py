"""`millrace bench`. The command line refers to it by name only, since nothing below `bench` may import it."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from platformdirs import user_cache_path
from rich.console import Console
from rich.table import Table as ConsoleTable

from bench.figures import Conditions, Measurement, Table
from bench.goals import missed
from bench.headline import PUBLISHED, headlines, publish, run_short, table_rows, write_into_documents
from bench.headline import table as markdown
from bench.kept import KeptFigures
from bench.output import dumps, kept_figures, locked_folder, report, write_artefacts
from bench.suite import SUITES, SuitePart, SuiteRun
from infra.commands.options import Seed, bounded
from infra.commands.output import console as standard_output

HEADLINE = "headline"
_KEPT = "kept"
_MOST_PRINTED = 60
"""Rows of a table that is printed; a longer one is of single measurements."""
_WHICH = f"Which: {', '.join(SUITES)}; or {HEADLINE}, the table of the documentation."


def bench(
    name: Annotated[str, typer.Argument(help=_WHICH)],
    quick: Annotated[
        bool, typer.Option(help="Smaller sizes and fewer rounds, in a minute or two. Not all goals apply.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Run only one part, such as `decisions`.")] = None,
    seed: Seed = 0,
    jobs: Annotated[
        int,
        bounded(least=1, most=256, help="Parallel runs, each on one core, where times do not matter."),
    ] = 1,
    traces: Annotated[
        Path, typer.Option(help="Folder of real traces, for `auction` and `elastic`.", metavar="DIR")
    ] = Path("traces"),
    profiles: Annotated[
        Path,
        typer.Option(help="Folder of measured curves and step times, for `merging`.", metavar="DIR"),
    ] = Path("profiles"),
    reviews: Annotated[
        Path, typer.Option(help="Folder of the rated sentences of `make reviews`, for `moe`.", metavar="DIR")
    ] = Path("reviews"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the report, tables (CSV) and outcomes of runs are kept; a stopped benchmark "
            "resumes from them. By default a folder in the user's cache.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option(help="Fail if a figure does not pass its gate.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure Millrace on this machine."""
    if name == HEADLINE:
        _headline(out, seed, check, only)
        return
    if name not in SUITES:
        known = ", ".join((*SUITES, HEADLINE))
        raise typer.BadParameter(f"there is no benchmark {name}: choose from {known}")
    progress = _progress()
    conditions = Conditions(quick, seed, _folder(out, name, quick), jobs, progress, traces, profiles, reviews)
    measured = _measure(name, only, conditions)
    if json:
        typer.echo(dumps(measured.report))
    else:
        for table in measured.tables:
            if len(table.rows) <= _MOST_PRINTED:
                _print(table.name, table.rows)
        columns = ("name", "value", "unit", "goal", "met", "note")
        figures = measured.report["figures"]
        _print("figures", [{column: figure[column] for column in columns} for figure in figures])
    faults = missed(name, measured.titles, measured.measurements, quick) if check else []
    for fault in faults:
        progress.print(fault, markup=False)
    if faults:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Measured:
    """Results of a run of a suite.

    Attributes:
        titles: titles of its parts.
    """

    titles: list[str]
    measurements: list[Measurement]
    tables: list[Table]
    report: dict[str, Any]


def _measure(name: str, only: str | None, conditions: Conditions) -> _Measured:
    """Run all parts of a suite, or one, and keep their results."""
    suite = SUITES[name].suite()
    parts: list[SuitePart[Any, Any, Any]] = [
        part for part in suite.due(conditions) if only in (None, part.title)
    ]
    if not parts:
        raise typer.BadParameter(f"{name} has no part {only}")
    folder, progress = conditions.folder, conditions.console
    bench: SuiteRun[Any, Any, Any] = suite.bench(conditions)
    measurements: list[Measurement] = []
    tables: list[Table] = []
    with locked_folder(folder):
        for part in parts:
            progress.print(f"{name}: {part.title}", markup=False)
            began_s = time.monotonic()
            result = part.measure(bench)
            progress.print(f"{name}: {part.title} took {time.monotonic() - began_s:.0f} s", markup=False)
            measurements += result.measurements
            tables += result.tables
        document = report(name, measurements, conditions.quick, conditions.seed)
        write_artefacts(folder, document, tables)
        KeptFigures(folder).keep(kept_figures(document))
    progress.print(f"report and tables are in {folder}", markup=False)
    return _Measured([part.title for part in parts], measurements, tables, document)


def _headline(out: Path | None, seed: int, check: bool, only: str | None) -> None:
    """Update the table of the documentation."""
    if only not in (None, _KEPT):
        raise typer.BadParameter(f"{HEADLINE} has no part {only}: `{_KEPT}` leaves out the short runs")
    root = out or user_cache_path("millrace") / "bench"
    folders = {name: [root / name, root / f"{name}-quick", PUBLISHED / name] for name in SUITES}
    figures = headlines()

    def measure(name: str, part: str) -> None:
        _measure(name, part, Conditions(True, seed, folders[name][1], 1, _progress()))

    if only is None:
        run_short(table_rows(figures, folders), measure)
    rows = table_rows(figures, folders)
    typer.echo(text := markdown(rows))
    if not check:
        write_into_documents(text)
        publish(rows)
    elif any(row.state != "current" for row in rows):
        raise typer.Exit(1)


def _progress() -> Console:
    logging.getLogger().setLevel(logging.WARNING)
    return Console(stderr=True, soft_wrap=True, highlight=False)


def _folder(out: Path | None, name: str, quick: bool) -> Path:
    """Return the folder of a benchmark's results; by default one in the user's cache."""
    return out or user_cache_path("millrace") / "bench" / (f"{name}-quick" if quick else name)


def _print(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    table = ConsoleTable(*(rows[0] if rows else ()), title=title)
    for row in rows:
        table.add_row(*map(_text, row.values()))
    standard_output().print(table)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
