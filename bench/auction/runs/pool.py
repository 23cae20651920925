"""Trials that have no row yet are run: alone, or several beside each other in processes of their own."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.auction.runs.measures import run_trial
from bench.auction.runs.rows import Rows
from bench.auction.runs.trial import Row, Trial
from bench.auction.runs.warm_up import warm_up


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


def jobs_at_once(wanted: int, console: Console) -> int:
    """So many runs beside each other, but no more than there are cores for; says so where that is fewer."""
    usable = len(usable_cores())
    if wanted > usable:
        console.print(f"--jobs {wanted} is more than the usable cores: {usable} at a time", markup=False)
    return min(wanted, usable)


def usable_cores() -> list[int]:
    """Cores that this process may run on; where no affinity can be asked for, as many as there are."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and all that it starts, to one core meanwhile: solvers take all that they may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _beside_each_other(trials: Iterable[Trial], sources: str, jobs: int) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    own = usable_cores()[:jobs]
    for core in own:
        cores.put(core)
    with context.Pool(len(own), _keep_to_one_core, (cores,)) as pool:
        yield from pool.imap_unordered(_run, [(trial, sources) for trial in trials])


def _run(work: tuple[Trial, str]) -> Row:
    trial, sources = work
    return run_trial(trial, sources, alone=False)


def _keep_to_one_core(cores: "multiprocessing.Queue[int]") -> None:
    """Solvers start as many threads as there are cores to run on, so each process gets one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})
