"""Runs the trials that have no row yet and keeps their rows, so that a stopped benchmark can be resumed."""

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.auction.runs.day import simulate_day
from bench.auction.runs.measures import run_trial
from bench.auction.runs.optimum import measure_clearing_bound
from bench.auction.runs.trial import Row, Trial
from bench.cores import on_one_core, usable_cores
from bench.sources import ROOT, digest_of, files_of
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError, disk_faults
from schemas.auction.settings import TitanPolicy
from schemas.codec import describe
from streams.installation import install_policies
from streams.worker.warm_up import warm_up as warm_up_cells

_SMALL = PaperSetting(nodes=2, slots=6, arrivals_per_slot=4.0, work_scale=0.05)


def warm_up() -> None:
    """Run what is smallest of each kind."""
    warm_up_cells()
    simulate_day(_SMALL, 0, lambda _declared: TitanPolicy(kind="titan"))
    measure_clearing_bound(_SMALL, 0)


ROWS_FILE = "rows.jsonl"
_ROW = TypeAdapter(Row)


class Rows:
    """All rows of a folder; those of other sources are kept in the file and never found."""

    def __init__(self, folder: Path, sources: str) -> None:
        """Read what is there; a last line that was torn by a kill is cut off.

        Raises:
            CommandError: another line is no row, or the disk refuses.
        """
        self.sources = sources
        self._path = folder / ROWS_FILE
        self._rows: dict[tuple[str, int, str, str], Row] = {}
        with disk_faults(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            for row in _read(self._path):
                self._keep(row)

    def append(self, row: Row) -> None:
        """Keep a row for good.

        Raises:
            CommandError: the disk refuses.
        """
        line = json.dumps(asdict(row)) + "\n"
        with disk_faults(self._path), self._path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._keep(row)

    def find(self, trial: Trial) -> Row | None:
        """The outcome of a trial under these sources. One made alone also serves a trial that need not be."""
        row = self._rows.get((trial.setting_name, trial.seed, trial.contender, self.sources))
        return row if row is not None and (row.alone or not trial.alone) else None

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Trials without a row, each once, in their order."""
        return [trial for trial in dict.fromkeys(trials) if self.find(trial) is None]

    def values(self, trial: Trial) -> dict[str, float]:
        """What a trial that was run gave.

        Raises:
            KeyError: it was not run.
        """
        row = self.find(trial)
        if row is None:
            raise KeyError(f"{trial}: not run")
        return dict(row.values)

    def _keep(self, row: Row) -> None:
        held = self._rows.get(row.key)
        if held is None or row.alone or not held.alone:
            self._rows[row.key] = row


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    rows = []
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            rows.append(_ROW.validate_json(line))
        except ValidationError as error:
            raise CommandError(
                f"{path}, line {number}: no row of a benchmark ({describe(error)}): remove it"
            ) from None
    return rows


DECIDING = (
    "schemas",
    "solvers",
    "streams",
    "infra/simulation",
    # What the lender of a simulation decides.
    "infra/lender/forecast.py",
    "infra/lender/history.py",
    "infra/lender/lending.py",
    "infra/lender/loans.py",
    "infra/lender/margin.py",
    "infra/lender/seasonal.py",
    "infra/workloads",
    "infra/views",
    "bench/workloads",
    "bench/auction/runs",
    # The versions of all libraries: plans are as good as the solver that finds them.
    "requirements.lock",
)
"""Files, and folders of Python files, from the root of the checkout."""


def digest_of_sources(root: Path = ROOT) -> str:
    """Of all files that decide, by name and content, in hexadecimal."""
    return digest_of(DECIDING, root)


def deciding_files(root: Path = ROOT) -> Iterator[Path]:
    """In a stable order."""
    yield from files_of(DECIDING, root)


def run_missing(trials: Sequence[Trial], rows: Rows, jobs: int, console: Console) -> None:
    """Give every trial a row. Each is kept as it comes, so that a run that is killed loses those under way.

    Raises:
        CommandError: a contender's plans violate problem P.
    """
    if not (left := rows.missing(trials)):
        return
    # Else the first run of all would wait for it, half a minute where nothing is compiled yet.
    warm_up()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("runs", total=len(left))
        for done, row in enumerate(_outcomes(trials, rows, jobs), start=1):
            rows.append(row)
            bar.update(task, completed=done, description=f"{row.setting}, seed {row.seed}, {row.contender}")
            if not console.is_terminal:
                line = f"{done} of {len(left)}: {row.setting}, seed {row.seed}, {row.contender}"
                console.print(line, markup=False)


def _outcomes(trials: Sequence[Trial], rows: Rows, jobs: int) -> Iterator[Row]:
    """Those that must run alone first: what they bring serves the others too."""
    for trial in rows.missing(trial for trial in trials if trial.alone or jobs == 1):
        with on_one_core():
            row = run_trial(trial, rows.sources, alone=True)
        yield row
    if left := rows.missing(trials):
        yield from _beside_each_other(left, rows.sources, jobs)


def _beside_each_other(trials: Iterable[Trial], sources: str, jobs: int) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    own = usable_cores()[:jobs]
    for core in own:
        cores.put(core)
    with context.Pool(len(own), _begin, (cores,)) as pool:
        yield from pool.imap_unordered(_run, [(trial, sources) for trial in trials])


def _run(work: tuple[Trial, str]) -> Row:
    trial, sources = work
    return run_trial(trial, sources, alone=False)


def _begin(cores: "multiprocessing.Queue[int]") -> None:
    """Install the policies, and keep to one core: solvers start as many threads as there are to run on."""
    install_policies()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})
