"""`millrace simulate`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.log_files import LogFiles
from infra.commands.options import (
    CELLS_DIRECTORY,
    CellName,
    ExpectHead,
    Json,
    Seed,
    bounded,
    cell_of,
    is_given,
    kept_heads,
)
from infra.commands.output import console, print_json, progress, remark
from infra.commands.replay import DECISIONS_FILE, LEDGER_FILE
from infra.commands.what_if import show_what_if
from infra.errors import CommandError
from infra.files.events import read_timed_events, read_timed_jobs
from infra.simulation.alternative import Alternative, NodeAddition
from infra.simulation.auction.policies import OtherPolicies, PolicyName
from infra.simulation.simulator import Simulation
from infra.views.board import Board
from infra.views.summary import summarise
from infra.views.tables import summary_table
from infra.workloads.arrivals import Arrival, cut_from_trace, generate
from infra.workloads.auction.bids import Demands, draw_workload
from infra.workloads.timed import TimedEvent
from infra.workloads.trace import read_trace
from schemas.base import Event
from schemas.cells import CellConfigured

EPOCH_S = 1_704_067_200.0
"""2024-01-01: the virtual time at which a cell without an epoch of its own begins."""

_OF_DRAWN_WORKLOADS = ("trace", "jobs", "span_slots", "median_work_slots", "seed")
_OF_OWN_WORKLOADS = ("job_file", "events", "solve_s")
FromLedger = Annotated[
    Path | None,
    typer.Option(
        help="What if: run the workload of this recorded ledger, and compare job by job.",
        metavar="LEDGER.jsonl",
        show_default=False,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="CSV of a real trace for arrivals and sizes; generated without one.",
        metavar="FILE.csv",
        show_default=False,
    ),
]
JobFile = Annotated[
    Path | None,
    typer.Option(
        help="Jobs to run instead of generated ones, as for `submit`; `at_s` is when each arrives, "
        "in seconds from the start.",
        metavar="JOBS.yaml",
        show_default=False,
    ),
]
EventsFile = Annotated[
    Path | None,
    typer.Option(
        help="Further events for the cell, with their `type`, and `at_s` as in --job-file.",
        metavar="EVENTS.yaml",
        show_default=False,
    ),
]
Policy = Annotated[
    PolicyName | None,
    typer.Option(help="Run every zone under this policy instead of its own.", show_default=False),
]
AddedNodes = Annotated[
    list[str] | None,
    typer.Option(
        help="More nodes of a type; may be repeated.", metavar="ZONE:GPU_TYPE=N", show_default=False
    ),
]
OutputDirectory = Annotated[
    Path | None,
    typer.Option(
        help=f"Write {LEDGER_FILE} and {DECISIONS_FILE} there, for `replay --from`.",
        metavar="DIR",
        show_default=False,
    ),
]
AuctionPrice = Annotated[
    int | None, bounded(least=1, most=10**15, help="Set it for every auction.", show_default=False)
]


def simulate(
    context: typer.Context,
    cells: Annotated[
        Path, typer.Option(help="YAML file of cells; a ledger's own by default.", metavar="CELLS.yaml")
    ] = CELLS_DIRECTORY / "fleet.yaml",
    cell: CellName = None,
    from_ledger: FromLedger = None,
    expect_head: ExpectHead = None,
    trace: Trace = None,
    jobs: Annotated[
        int,
        bounded(least=0, most=1_000_000, help="Number of drawn jobs; with 0, no quotes are drawn either."),
    ] = 200,
    span_slots: Annotated[float, bounded(least=0, most=10_000, help="Slots over which they arrive.")] = 72.0,
    median_work_slots: Annotated[
        float, bounded(least=0.001, most=10_000, help="Median work, in slots on the slowest GPU type.")
    ] = 3.0,
    job_file: JobFile = None,
    events: EventsFile = None,
    solve_s: Annotated[float, bounded(least=0, most=86_400, help="Virtual seconds of each solve.")] = 0.0,
    pace: Annotated[
        float, bounded(least=0.01, most=1, help="Executors' speed, relative to what the zones plan with.")
    ] = 1.0,
    policy: Policy = None,
    price_per_thousand_samples_micros: Annotated[
        int | None,
        bounded(least=0, most=10**15, help="The price under --policy fixed-price.", show_default=False),
    ] = None,
    money_unit_micros: AuctionPrice = None,
    max_value_per_compute_micros: AuctionPrice = None,
    max_value_per_memory_micros: AuctionPrice = None,
    add_nodes: AddedNodes = None,
    scale_nodes: Annotated[
        float, bounded(least=0.01, most=100, help="Multiply the nodes of each type and tariff.")
    ] = 1.0,
    seed: Seed = 0,
    out: OutputDirectory = None,
    json: Json = False,
) -> None:
    """Run a cell on virtual time, with a generated workload or that of a recorded ledger."""
    prices = {
        "money_unit_micros": money_unit_micros,
        "max_value_per_compute_micros": max_value_per_compute_micros,
        "max_value_per_memory_micros": max_value_per_memory_micros,
    }
    policies = OtherPolicies(
        policy,
        price_per_thousand_samples_micros,
        {name: micros for name, micros in prices.items() if micros is not None},
    )
    alternative = Alternative(policies.of, scale_nodes, tuple(map(NodeAddition.parse, add_nodes or [])))
    if from_ledger is not None:
        _refuse(context, (*_OF_DRAWN_WORKLOADS, *_OF_OWN_WORKLOADS), "--from-ledger")
        other_cells = cells if is_given(context, "cells") else None
        kept = kept_heads(expect_head, cell)
        show_what_if(from_ledger, cell, kept, other_cells, alternative, pace, out, json)
        return
    if expect_head:
        raise CommandError("--expect-head is for recorded ledgers and goes with --from-ledger")
    configuration = cell_of(cells, EPOCH_S, cell)
    if job_file is None:
        demands = Demands(median_work_slots=median_work_slots)
        inputs = _drawn(configuration, trace, jobs, span_slots * configuration.slot_s, seed, demands)
    else:
        _refuse(context, _OF_DRAWN_WORKLOADS, "--job-file")
        inputs = [*read_timed_jobs(str(job_file), configuration.epoch_s, configuration.cell)]
    if events is not None:
        inputs += read_timed_events(str(events), configuration.epoch_s, configuration.cell)
    # Jobs and quotes are drawn for the cell as the file has it, so that all changes meet the same ones.
    simulated = alternative.of(configuration, source=str(cells))
    for note in alternative.without_effect(configuration):
        remark(note)
    _run(simulated, inputs, pace, solve_s, seed, out, json)


def _refuse(context: typer.Context, names: Iterable[str], option: str) -> None:
    """Refuse options that would do nothing beside another."""
    for name in names:
        if is_given(context, name):
            raise CommandError(f"--{name.replace('_', '-')} does not go with {option}")


def _drawn(
    cell: CellConfigured, trace: Path | None, jobs: int, span_s: float, seed: int, demands: Demands
) -> list[TimedEvent[Event]]:
    """A drawn workload, as inputs of a simulation."""
    if jobs == 0:
        return []
    arrivals = arrivals_of(trace, jobs, span_s, seed)
    return draw_workload(cell, arrivals, cell.epoch_s, seed, demands).inputs(cell.epoch_s)


def _run(
    cell: CellConfigured,
    inputs: list[TimedEvent[Event]],
    pace: float,
    solve_s: float,
    seed: int,
    out: Path | None,
    json: bool,
) -> None:
    """Simulate a cell and print what came of it."""
    with progress("simulating") as done:
        run = Simulation(cell, inputs, pace, solve_s=solve_s).run(done)
    summary = summarise(Board.of(cell.cell, (entry.envelope for entry in run.ledger), run.decisions))
    if out is not None:
        with LogFiles(out) as files:
            files.write(run.ledger, run.decisions)
    if json:
        print_json({"cell": cell.cell, "seed": seed, **summary.as_json()})
    else:
        console().print(summary_table(f"Cell {cell.cell}, seed {seed}", {cell.cell: summary}))


def arrivals_of(trace: Path | None, jobs: int, span_s: float, seed: int) -> list[Arrival]:
    """Arrivals from a trace if one is given, else generated.

    Raises:
        CommandError: the trace is too short.
        TraceError: the file is none.
    """
    if trace is None:
        return generate(jobs, span_s, seed)
    traced = read_trace(trace)
    try:
        return cut_from_trace(traced, jobs, span_s, seed)
    except ValueError as error:
        raise CommandError(f"{trace}: {error}") from None
