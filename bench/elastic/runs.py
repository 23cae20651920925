"""Makes the trials that have no result yet, in processes of their own, and keeps their results."""

import gc
import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from bench.cores import on_one_core
from bench.elastic.simulated import OUTCOME, Outcome, simulate
from bench.elastic.trial import Setting, Trial
from bench.sources import digest_of
from infra.errors import CommandError, disk_faults
from schemas.codec import describe
from streams.installation import install_policies

DECIDING = (
    "schemas",
    "solvers",
    "streams",
    "infra/simulation",
    "infra/workloads",
    "infra/lender",
    "infra/log",
    "infra/views",
    "bench/elastic/trial.py",
    "bench/elastic/simulated.py",
    # The versions of all libraries.
    "requirements.lock",
)
"""Files, and folders of Python files, from the root of the checkout."""

_NAME_BYTES = 12


class Outcomes:
    """The results in a folder, one file each; those of other sources are kept and never found."""

    def __init__(self, folder: Path, sources: str | None = None) -> None:
        """
        Args:
            sources: digest of all that decides; by default that of this checkout.
        """
        self._folder = folder / "runs"
        self._sources = digest_of(DECIDING) if sources is None else sources
        self._read: dict[Trial, Outcome] = {}

    def find(self, trial: Trial) -> Outcome | None:
        """The result of a trial, if it was made.

        Raises:
            CommandError: the file of it is damaged, or the disk refuses.
        """
        if trial not in self._read:
            path = self._path(trial)
            with disk_faults(path):
                if not path.exists():
                    return None
                text = path.read_text()
            try:
                self._read[trial] = OUTCOME.validate_python(json.loads(text)["outcome"])
            except (ValueError, KeyError, ValidationError) as error:
                reason = describe(error) if isinstance(error, ValidationError) else error
                raise CommandError(f"{path}: no result of a run ({reason}): remove it") from None
        return self._read[trial]

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        """For good: whole or not at all.

        Raises:
            CommandError: the disk refuses.
        """
        path = self._path(trial)
        document = {"trial": trial.as_json(), "sources": self._sources, "outcome": asdict(outcome)}
        with disk_faults(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(document))
            partial.replace(path)
        self._read[trial] = outcome

    def of(self, trial: Trial) -> Outcome:
        """The result of a trial that was made.

        Raises:
            KeyError: it was not.
        """
        outcome = self.find(trial)
        if outcome is None:
            raise KeyError(f"{trial}: not run")
        return outcome

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those without a result, each once, in their order."""
        return [trial for trial in dict.fromkeys(trials) if self.find(trial) is None]

    def _path(self, trial: Trial) -> Path:
        key = json.dumps([trial.as_json(), self._sources], sort_keys=True)
        return self._folder / f"{blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()}.json"


def run_missing(trials: Sequence[Trial], outcomes: Outcomes, jobs: int, console: Console) -> None:
    """Give every trial a result. Each is kept as it comes, so that what was stopped goes on from there."""
    if not (left := outcomes.missing(trials)):
        return
    alone, others = ([trial for trial in left if trial.alone is wanted] for wanted in (True, False))
    done = 0
    for part, at_once in ((alone, 1), (others, jobs)):
        for trial, outcome in _made(part, at_once):
            outcomes.keep(trial, outcome)
            done += 1
            console.print(f"{done} of {len(left)}, {outcome['cpu_s']:.1f} s: {trial}", markup=False)


def _made(trials: Sequence[Trial], at_once: int) -> Iterator[tuple[Trial, Outcome]]:
    """In the order in which they are ready. One at a time is kept to one core."""
    if not trials:
        return
    if at_once == 1:
        with on_one_core():
            yield from _in_processes(trials, 1)
    else:
        yield from _in_processes(trials, at_once)


def _in_processes(trials: Sequence[Trial], at_once: int) -> Iterator[tuple[Trial, Outcome]]:
    """Run a trial whose time and memory count in a process of its own; others share one each, as a start
    takes as long as a small simulation."""
    with ProcessPoolExecutor(
        at_once,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_warm_up,
        max_tasks_per_child=1 if trials[0].alone else None,
    ) as pool:
        running = {pool.submit(_simulate, trial): trial for trial in trials}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_WARM_UP = Setting(factor=0.02, first_day=4.0, days=0.05)


def _warm_up() -> None:
    """Load the kernels, and compile those that no process has compiled yet."""
    install_policies()
    for trial in (Trial(_WARM_UP), Trial(_WARM_UP, "pollux", scaling="tuned", loans=False)):
        simulate(trial)


def _simulate(trial: Trial) -> Outcome:
    # As `Simulation.pass_on` does: jobs grow all the while and hold no cycles.
    gc.disable()
    try:
        return simulate(trial)
    finally:
        gc.enable()
        gc.collect()
