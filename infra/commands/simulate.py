"""`millrace simulate`."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.commands.deciding import deciding
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
from infra.commands.output import console, print_json, remark
from infra.commands.tables import write_tables
from infra.commands.what_if import show_what_if
from infra.errors import CommandError
from infra.event_files import read_timed_events, read_timed_jobs
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.simulation.alternative import Alternative, NodeAddition
from infra.simulation.auction.policies import OtherPolicies, PolicyName
from infra.simulation.edits import Edits, NodeCount, Setting
from infra.simulation.lender import lenders_of
from infra.simulation.simulator import Participant, Simulation, Step
from infra.views.tables import summary_table, zone_tables
from infra.workloads.drawing import draw_jobs
from infra.workloads.elastic.loads import INTERVAL_S, generate_load, load_reports, read_load
from infra.workloads.elastic.requests import DAY_S
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.cells import CellConfigured
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE

EPOCH_S = 1_704_067_200.0
"""2024-01-01, the epoch of a cell without one."""

GENERATED = "generated"
"""Value of `--load` for a generated load in place of a file."""

_MOST_JOBS = 1_000_000
_OF_DRAWN_WORKLOADS = ("trace", "jobs", "span_slots", "days", "median_work_slots", "draw")
_OF_OWN_WORKLOADS = ("job_file", "events", "load", "solve_s")


@dataclass(frozen=True)
class JobSource:
    """Number of jobs to draw, or the file to read them from."""

    count: int | None = None
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "JobSource":
        """Read a number, or the path of a file.

        Raises:
            BadParameter: the text is neither.
        """
        if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_JOBS)):
            if int(text) <= _MOST_JOBS:
                return cls(count=int(text))
        elif Path(text).is_file():
            return cls(file=Path(text))
        raise typer.BadParameter(f"{text!r} is neither a number from 0 to {_MOST_JOBS} nor a file")


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
        help="CSV of a real trace to draw jobs from; they are generated without one.",
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
    typer.Option(
        help="Run every zone of an auction under this policy instead of its own; zones of other policies are "
        "in files, such as --cells infra/cells/elastic.yaml.",
        show_default=False,
    ),
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
        help=f"Write {LEDGER_FILE} and {DECISIONS_FILE} there, for `replay --from`, and what policies "
        "measure as CSV.",
        metavar="DIR",
        show_default=False,
    ),
]
DrawnJobs = Annotated[
    JobSource | None,
    typer.Option(
        parser=JobSource.parse,
        help="Number of drawn jobs, or a file for --trace; by default as many as the policy draws. With 0, "
        "nothing is drawn.",
        metavar="N|FILE.csv",
        show_default=False,
    ),
]
DrawingOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Option of the policy for drawn jobs; may be repeated.",
        metavar="NAME=VALUE",
        show_default=False,
    ),
]
Loads = Annotated[
    str | None,
    typer.Option(
        help=f"CSV of the load of zones that lend, or `{GENERATED}`: a lender of each acts on it.",
        metavar="FILE.csv",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A zone's setting; may be repeated.", metavar="ZONE.FIELD=VALUE", show_default=False
    ),
]
NodeCounts = Annotated[
    list[str] | None,
    typer.Option(
        help="How many nodes a zone has, which jobs are drawn for; may be repeated.",
        metavar="ZONE=N",
        show_default=False,
    ),
]
AuctionPrice = Annotated[
    int | None, bounded(least=1, most=10**15, help="Set it for every auction.", show_default=False)
]


def simulate(
    context: typer.Context,
    cells: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of cells; by default a ledger's own, else infra/cells/elastic.yaml with --load "
            "or a file as --jobs, else infra/cells/fleet.yaml.",
            metavar="CELLS.yaml",
            show_default=False,
        ),
    ] = None,
    cell: CellName = None,
    from_ledger: FromLedger = None,
    expect_head: ExpectHead = None,
    trace: Trace = None,
    jobs: DrawnJobs = None,
    span_slots: Annotated[
        float | None,
        bounded(least=0, most=10_000, help="Slots over which drawn jobs arrive.", show_default=False),
    ] = None,
    days: Annotated[
        float | None, bounded(least=0.01, most=366, help="The same in days.", show_default=False)
    ] = None,
    median_work_slots: Annotated[
        float | None,
        bounded(
            least=0.001,
            most=10_000,
            help="Median work of bids, in slots on the slowest GPU type.",
            show_default=False,
        ),
    ] = None,
    draw: DrawingOption = None,
    load: Loads = None,
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
    settings: Settings = None,
    nodes: NodeCounts = None,
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
    edits = Edits(tuple(map(Setting.parse, settings or [])), tuple(map(NodeCount.parse, nodes or [])))
    alternative = Alternative(policies.of, scale_nodes, tuple(map(NodeAddition.parse, add_nodes or [])))
    if from_ledger is not None:
        _refuse(context, (*_OF_DRAWN_WORKLOADS, "seed", *_OF_OWN_WORKLOADS), "--from-ledger")
        kept = kept_heads(expect_head, cell)
        show_what_if(from_ledger, cell, kept, cells, edits, alternative, pace, out, json)
        return
    if expect_head:
        raise CommandError("--expect-head is for recorded ledgers and goes with --from-ledger")
    requested = jobs or JobSource()
    if cells is None:
        cells = CELLS_DIRECTORY / ("elastic.yaml" if load or requested.file else "fleet.yaml")
    configuration = edits.of(cell_of(cells, EPOCH_S, cell))
    span_s = _span_s(context, span_slots, days, configuration.slot_s)
    inputs: list[TimedEvent[Event]]
    if job_file is None:
        if requested.file is not None:
            _refuse(context, ("trace",), "a file as --jobs")
        options = _options(draw, median_work_slots)
        source = trace or requested.file
        drawn = requested.count != 0
        inputs = (
            draw_jobs(configuration, seed, source, requested.count, span_s, options, remark) if drawn else []
        )
    else:
        drawn_alone = _OF_DRAWN_WORKLOADS if load == GENERATED else (*_OF_DRAWN_WORKLOADS, "seed")
        _refuse(context, drawn_alone, "--job-file")
        inputs = [*read_timed_jobs(str(job_file), configuration.epoch_s, configuration.cell)]
    if events is not None:
        inputs += read_timed_events(str(events), configuration.epoch_s, configuration.cell)
    participants: list[Participant] = []
    if load is not None:
        last_s = max((timed.time_s for timed in inputs), default=configuration.epoch_s)
        inputs += _loads(configuration, load, span_s or last_s - configuration.epoch_s, seed)
        participants += lenders_of(configuration)
    # Jobs and quotes are drawn for the unchanged cell, so all changes get the same ones.
    simulated = alternative.of(configuration, source=str(cells))
    for note in alternative.without_effect(configuration):
        remark(note)
    _run(
        simulated,
        Simulation(simulated, inputs, pace, solve_s=solve_s, participants=participants),
        seed,
        out,
        json,
    )


def _refuse(context: typer.Context, names: Iterable[str], option: str) -> None:
    """Refuse options that would have no effect together with another."""
    for name in names:
        if is_given(context, name):
            raise CommandError(f"--{name.replace('_', '-')} does not go with {option}")


def _span_s(
    context: typer.Context, span_slots: float | None, days: float | None, slot_s: float
) -> float | None:
    """Return the time in which jobs arrive, if it is given (s)."""
    if days is None:
        return None if span_slots is None else span_slots * slot_s
    _refuse(context, ("span_slots",), "--days")
    return days * DAY_S


def _options(draw: list[str] | None, median_work_slots: float | None) -> dict[str, str]:
    """Return the options of drawn jobs, by name."""
    options = {} if median_work_slots is None else {"median_work_slots": str(median_work_slots)}
    for text in draw or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--draw {text}: expected NAME=VALUE")
        if name in options:
            raise CommandError(f"--draw {text}: {name} is given twice")
        options[name] = value
    return options


def _loads(cell: CellConfigured, load: str, span_s: float, seed: int) -> list[TimedEvent[Event]]:
    """Return equal loads for all zones that lend, every five minutes from the start on.

    Raises:
        CommandError: no zone lends.
        TraceError: the file is invalid.
    """
    lenders = [zone.id for zone in cell.zones if zone.lending is not None]
    if not lenders:
        raise CommandError(f"--load: no zone of cell {cell.cell} has `lending`")
    days = max(span_s, INTERVAL_S) / DAY_S
    samples = generate_load(seed, days) if load == GENERATED else read_load(Path(load), days)
    return [timed for zone in lenders for timed in load_reports(samples, cell.cell, zone, cell.epoch_s)]


def _run(cell: CellConfigured, simulation: Simulation, seed: int, out: Path | None, json: bool) -> None:
    """Simulate a cell and print the results, without keeping its log in memory."""
    board = Board(cell.cell)
    with LogFiles(out) if out is not None else nullcontext() as files, deciding("simulating") as done:

        def fold(step: Step) -> None:
            board.fold_step(step.time_s, step.entry, step.decisions)
            if files is not None:
                files.write([step.entry], step.decisions)

        simulation.pass_on(fold, done)
    if simulation.given_up is not None:
        remark(f"the simulation was ended: {simulation.given_up}; they count as they are by then")
    if out is not None:
        write_tables(out, {zone: figures.tables() for zone, figures in board.zones.items()})
    summary = summarise(board)
    if json:
        fields: dict[str, Any] = {
            "cell": cell.cell,
            "seed": seed,
            "given_up": simulation.given_up,
            **summary.as_json(),
        }
        print_json(fields)
        return
    screen = console()
    sides = {cell.cell: summary}
    screen.print(summary_table(f"Cell {cell.cell}, seed {seed}", sides), *zone_tables(sides), sep="\n")
