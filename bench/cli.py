"""`millrace bench`: the command line finds it as a plug-in, since nothing below `bench` may import it."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as ConsoleTable

from bench.artefacts import write_artefacts
from bench.figures import Measurement, Result, Table, dumps, missed, report
from infra.commands.options import Seed

Part = Callable[[bool, int], Result]


def spine_parts() -> Iterator[tuple[str, Part]]:
    """The parts of `millrace bench spine`, the quiet ones first."""
    from bench.spine.decide import measure_decide
    from bench.spine.fused import measure_fused_training
    from bench.spine.kafka import measure_kafka
    from bench.spine.recovery import measure_recovery

    yield "decisions", measure_decide
    yield "Kafka", measure_kafka
    yield "recovery", measure_recovery
    yield "fused training", measure_fused_training


BENCHES = {"spine": spine_parts}


def bench(
    name: Annotated[str, typer.Argument(help=f"Which: {', '.join(BENCHES)}.")],
    quick: Annotated[bool, typer.Option(help="Smaller sizes and fewer rounds: about two minutes.")] = False,
    only: Annotated[str | None, typer.Option(help="One part alone, such as `decisions`.")] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Also write raw rows (CSV) and pictures (PNG) here.")
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Fail if a figure misses its goal by more than its margin.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what Millrace is worth on this machine."""
    if name not in BENCHES:
        raise typer.BadParameter(f"there is no benchmark {name}: choose from {', '.join(BENCHES)}")
    parts = [(title, part) for title, part in BENCHES[name]() if only in (None, title)]
    if not parts:
        raise typer.BadParameter(f"{name} has no part {only}")
    logging.getLogger().setLevel(logging.WARNING)
    progress = Console(stderr=True)
    measurements: list[Measurement] = []
    tables: list[Table] = []
    for title, part in parts:
        with progress.status(f"{name}: {title}"):
            result = part(quick, seed)
        measurements += result.measurements
        tables += result.tables
    document = report(name, measurements, quick, seed)
    if out is not None:
        write_artefacts(out, document, tables)
    if json:
        typer.echo(dumps(document))
    else:
        _print(document["figures"])
    faults = missed(name, measurements) if check else []
    for fault in faults:
        progress.print(fault, markup=False)
    if faults:
        raise typer.Exit(1)


def _print(figures: list[dict[str, object]]) -> None:
    table = ConsoleTable("figure", "value", "unit", "goal", "met", "note")
    for figure in figures:
        table.add_row(*(str(figure[column]) for column in ("name", "value", "unit", "goal", "met", "note")))
    Console().print(table)
