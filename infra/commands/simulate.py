"""`millrace simulate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import CELLS_DIRECTORY, CellName, Json, Seed, bounded
from infra.commands.replay import DECISIONS_FILE, LEDGER_FILE
from infra.simulation.policy_name import PolicyName

if TYPE_CHECKING:
    from infra.simulation.simulator import SimulatedRun
    from infra.workloads.arrivals import Arrival
    from schemas.cells import CellConfigured

EPOCH_S = 1_704_067_200.0
"""2024-01-01: the virtual time at which a cell without an epoch of its own begins."""


def simulate(
    cells: Annotated[Path, typer.Option(help="YAML file of cells.", metavar="CELLS.yaml")] = CELLS_DIRECTORY
    / "fleet.yaml",
    cell: CellName = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV of a real trace to take arrivals and sizes from; else they are generated.",
            metavar="FILE.csv",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, bounded(least=1, most=1_000_000, help="Number of bids.")] = 200,
    span_slots: Annotated[float, bounded(least=0, most=10_000, help="Slots over which they arrive.")] = 72.0,
    median_work_slots: Annotated[
        float, bounded(least=0.001, most=10_000, help="Median work, in slots on the slowest GPU type.")
    ] = 3.0,
    pace: Annotated[
        float, bounded(least=0.01, most=1, help="Executors' speed, as a part of what the zones plan with.")
    ] = 1.0,
    policy: Annotated[
        PolicyName | None,
        typer.Option(help="Run every zone under it, in place of the file's.", show_default=False),
    ] = None,
    price_per_thousand_samples_micros: Annotated[
        int | None,
        bounded(least=0, most=10**15, help="Of --policy fixed-price.", show_default=False),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"Write {LEDGER_FILE} and {DECISIONS_FILE} there, for `replay --from`.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a cell, unchanged, through a workload on virtual time."""
    from infra.commands.options import cells_of
    from infra.commands.output import console, print_json, progress
    from infra.commands.summaries import summary_table
    from infra.simulation.policies import under_policy
    from infra.simulation.simulator import Simulation
    from infra.summary import summarise
    from infra.workloads.bids import Demands
    from infra.workloads.workload import draw_workload

    configuration = _chosen(cells_of(cells, EPOCH_S), cell)
    arrivals = arrivals_of(trace, jobs, span_slots * configuration.slot_s, seed)
    demands = Demands(median_work_slots=median_work_slots)
    workload = draw_workload(configuration, arrivals, configuration.epoch_s, seed, demands)
    # Bids and quotes are drawn for the cell as the file has it, so that all policies meet the same ones.
    simulated = under_policy(configuration, policy, price_per_thousand_samples_micros)
    with progress("simulating") as done:
        run = Simulation(simulated, workload.bids, workload.quotes, pace).run(done)
    summary = summarise((entry.envelope.event for entry in run.ledger), run.decisions)
    if out is not None:
        _write(run, out)
    if json:
        print_json({"cell": configuration.cell, "seed": seed, "events": len(run.ledger), **summary.as_json()})
    else:
        console().print(summary_table(f"Cell {configuration.cell}, seed {seed}", summary))


def _chosen(cells: "tuple[CellConfigured, ...]", name: str | None) -> "CellConfigured":
    from infra.errors import CommandError

    names = ", ".join(cell.cell for cell in cells)
    if name is None:
        if len(cells) > 1:
            raise CommandError(f"the file has several cells, choose one of {names} with --cell")
        return cells[0]
    for cell in cells:
        if cell.cell == name:
            return cell
    raise CommandError(f"the file has no cell {name}, it has {names}")


def arrivals_of(trace: Path | None, jobs: int, span_s: float, seed: int) -> "list[Arrival]":
    """Arrivals from a trace if one is given, else generated.

    Raises:
        CommandError: the file is no trace, or too short a one.
    """
    from infra.errors import CommandError
    from infra.workloads.arrivals import cut_from_trace, generate
    from infra.workloads.trace import read_trace

    if trace is None:
        return generate(jobs, span_s, seed)
    try:
        return cut_from_trace(read_trace(trace), jobs, span_s, seed)
    except ValueError as error:
        raise CommandError(str(error) if str(trace) in str(error) else f"{trace}: {error}") from None


def _write(run: "SimulatedRun", directory: Path) -> None:
    from infra.errors import CommandError
    from streams.replay_sources import ledger_line

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / LEDGER_FILE).open("wb") as file:
            file.writelines(ledger_line(entry) for entry in run.ledger)
        with (directory / DECISIONS_FILE).open("wb") as file:
            file.writelines(decision.canonical + b"\n" for decision in run.decisions)
    except OSError as error:
        raise CommandError(f"{directory}: {error.strerror}") from None
