"""Runs the trials of a suite, in parallel processes if requested, and keeps their outcomes by digest of
sources."""

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from infra.errors import CommandError, disk_faults
from schemas.codec import describe
from streams.installation import install_policies

_NAME_BYTES = 12
ROOT = Path(__file__).parents[1]
"""Root of the checkout."""

_DIGEST_BYTES = 8


class Trial(Protocol):
    """Inputs of one run. Its `str` names it in messages."""

    @property
    def alone(self) -> bool:
        """Whether no other run may be parallel, because its times are measured."""

    def identity(self) -> Mapping[str, Any]:
        """Return JSON values that, with the sources, determine the outcome; for a file that it reads, the
        digest."""


TrialT = TypeVar("TrialT", bound=Trial)
OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True)
class Experiment(Generic[TrialT, OutcomeT]):
    """An experiment: how its trials are run, and on which sources they depend.

    Attributes:
        run: runs a trial; a function of a module, which other processes import.
        outcome: type of its outcomes.
        sources: files, and folders of Python files, that determine an outcome, from the root of the checkout.
        warm_up: loads or compiles what would otherwise delay the first trial.
        own_process: whether a trial that runs alone has a process of its own, because its memory is measured.
    """

    run: Callable[[TrialT], OutcomeT]
    outcome: TypeAdapter[OutcomeT]
    sources: tuple[str, ...]
    warm_up: Callable[[], None] | None = None
    own_process: bool = False


class Runs(Generic[TrialT, OutcomeT]):
    """Outcomes in a folder, one file each. Files from other sources stay, but are not used."""

    def __init__(
        self, folder: Path, experiment: Experiment[TrialT, OutcomeT], sources: str | None = None
    ) -> None:
        """
        Args:
            sources: digest of the experiment's sources; by default that of this checkout.
        """
        self._folder = folder / "runs"
        self._experiment = experiment
        self._given_sources = sources
        self._found: dict[TrialT, OutcomeT] = {}

    @cached_property
    def _sources(self) -> str:
        return digest_of(self._experiment.sources) if self._given_sources is None else self._given_sources

    def find(self, trial: TrialT) -> OutcomeT | None:
        """Return the outcome of a trial; None if it was not run. Outcomes measured alone also count for
        other trials.

        Raises:
            CommandError: the file is damaged, or cannot be read.
        """
        if trial not in self._found:
            path = self._path(trial)
            with disk_faults(path):
                if not path.exists():
                    return None
                text = path.read_text()
            try:
                document = json.loads(text)
                outcome = self._experiment.outcome.validate_python(document["outcome"])
                if trial.alone and not document["alone"]:
                    return None
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                reason = describe(error) if isinstance(error, ValidationError) else error
                raise CommandError(f"{path}: not an outcome of a run ({reason}): remove it") from None
            self._found[trial] = outcome
        return self._found[trial]

    def of(self, trial: TrialT) -> OutcomeT:
        """Return the outcome of a trial that was run.

        Raises:
            KeyError: it was not run.
        """
        outcome = self.find(trial)
        if outcome is None:
            raise KeyError(f"{trial}: not run")
        return outcome

    def missing(self, trials: Iterable[TrialT]) -> list[TrialT]:
        """Return the trials without an outcome, each once, in their order."""
        return [trial for trial in dict.fromkeys(trials) if self.find(trial) is None]

    def keep(self, trial: TrialT, outcome: OutcomeT, alone: bool = True) -> None:
        """Write an outcome atomically.

        Raises:
            CommandError: it cannot be written.
        """
        path = self._path(trial)
        document = {
            "trial": str(trial),
            "identity": trial.identity(),
            "sources": self._sources,
            "alone": alone,
            "outcome": self._experiment.outcome.dump_python(outcome, mode="json"),
        }
        with disk_faults(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            partial_path = path.with_suffix(".partial")
            partial_path.write_text(json.dumps(document))
            partial_path.replace(path)
        self._found[trial] = outcome

    def complete(self, trials: Iterable[TrialT], jobs: int, console: Console) -> None:
        """Run each trial without an outcome, and keep the outcome at once, so that a stopped benchmark
        resumes. Trials that run alone come first, one at a time on one core: their outcomes serve the others
        too.

        Raises:
            CommandError: a trial fails; the message names it.
        """
        requested = list(trials)
        done, due = 0, len({json.dumps(trial.identity()) for trial in self.missing(requested)})
        for is_alone in (True, False):
            pending = self.missing(trial for trial in requested if trial.alone or not is_alone)
            made_alone = is_alone or (jobs == 1 and not self._experiment.own_process)
            for trial, outcome, duration_s in self._made(pending, 1 if is_alone else jobs, is_alone):
                self.keep(trial, outcome, made_alone)
                done += 1
                console.print(f"{done} of {due}, {duration_s:.1f} s: {trial}", markup=False)

    def _made(
        self, trials: Sequence[TrialT], at_once: int, is_alone: bool
    ) -> Iterator[tuple[TrialT, OutcomeT, float]]:
        """Yield trials with outcomes and durations (s), in the order of their ends."""
        if not trials:
            return
        make = partial(_make, self._experiment.run)
        own_process = is_alone and self._experiment.own_process
        with on_one_core() if at_once == 1 else nullcontext():
            if at_once == 1 and not own_process:
                # A new process needs seconds to load its libraries.
                if self._experiment.warm_up is not None:
                    self._experiment.warm_up()
                yield from ((trial, *make(trial)) for trial in trials)
                return
            with _processes(at_once, self._experiment.warm_up, own_process) as pool:
                running: dict[Future[tuple[OutcomeT, float]], TrialT] = {
                    pool.submit(make, each): each for each in trials
                }
                try:
                    for future in as_completed(running):
                        yield running[future], *future.result()
                finally:
                    pool.shutdown(wait=False, cancel_futures=True)

    def _path(self, trial: TrialT) -> Path:
        key = json.dumps([trial.identity(), self._sources], sort_keys=True)
        return self._folder / f"{hashlib.blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()}.json"


def _make(run: Callable[[TrialT], OutcomeT], trial: TrialT) -> tuple[OutcomeT, float]:
    began_s = time.monotonic()
    try:
        outcome = run(trial)
    except CommandError as error:
        raise CommandError(f"{trial}: {error}") from None
    return outcome, time.monotonic() - began_s


def _processes(at_once: int, warm_up: Callable[[], None] | None, own_process: bool) -> ProcessPoolExecutor:
    """Create processes with one core each, because solvers start a thread for each usable core."""
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    # Single-use processes inherit this process's one core.
    for core in () if own_process else usable_cores()[:at_once]:
        cores.put(core)
    return ProcessPoolExecutor(
        at_once,
        mp_context=context,
        initializer=_begin,
        initargs=(None if own_process else cores, warm_up),
        max_tasks_per_child=1 if own_process else None,
    )


def _begin(cores: "multiprocessing.Queue[int] | None", warm_up: Callable[[], None] | None) -> None:
    install_policies()
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})
    if warm_up is not None:
        warm_up()


def peak_memory_bytes(process: int | str = "self") -> int:
    """Return the largest resident set that a process ever had, from Linux. It is not `ru_maxrss`, which a
    process inherits from its parent."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1_024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def jobs_at_once(requested: int, console: Console) -> int:
    """Return the number of parallel runs: at most one per usable core. Prints a line if that is fewer than
    requested."""
    usable = len(usable_cores())
    if requested > usable:
        console.print(f"--jobs {requested} is more than the usable cores: {usable} at a time", markup=False)
    return min(requested, usable)


def usable_cores() -> list[int]:
    """Return the cores that this process may use; all cores if the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def on_one_core() -> Iterator[None]:
    """Restrict this thread, and all that it starts, to one core, because solvers use all usable cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def digest_of(names: Sequence[str], root: Path = ROOT) -> str:
    """Return the hexadecimal digest of files, by name and content.

    Args:
        names: files, and folders of Python files, from the root.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in files_of(names, root):
        for part in (str(path.relative_to(root)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return digest.hexdigest()


def files_of(names: Sequence[str], root: Path = ROOT) -> Iterator[Path]:
    """Yield the files in a stable order, without those that do not exist, such as the lock with an installed
    package."""
    for name in names:
        path = root / name
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path
