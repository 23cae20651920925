"""Makes the trials that have no result yet, beside each other if asked for, and keeps their results."""

import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from bench.merging.simulated import OUTCOME, Outcome, run
from bench.merging.trial import Setting, Trial
from bench.sources import digest_of, files_of
from infra.errors import CommandError, disk_faults
from schemas.codec import describe
from streams.installation import install_policies

DECIDING = (
    "schemas",
    "solvers",
    "streams",
    "infra/simulation",
    "infra/lender",
    "infra/log",
    "infra/views",
    "infra/workloads",
    *(
        f"bench/merging/{name}.py"
        for name in (
            "curves",
            "drawn",
            "fluid",
            "fluid_data",
            "kinds",
            "known_merges",
            "measured",
            "measured_truth",
            "noise",
            "simulated",
            "trial",
        )
    ),
    # The versions of all libraries.
    "requirements.lock",
)
"""Files, and folders of Python files, from the root of the checkout."""

_NAME_BYTES = 12


class Outcomes:
    """The results in a folder, one file each; those of other sources or measurements are kept and never
    found."""

    def __init__(self, folder: Path, sources: str | None = None) -> None:
        """
        Args:
            sources: digest of all that decides; by default that of this checkout.
        """
        self._folder = folder / "runs"
        self._sources = digest_of(DECIDING) if sources is None else sources
        self._measured: dict[Setting, str] = {}
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
        key = json.dumps([trial.as_json(), self._sources, self._digest(trial.setting)], sort_keys=True)
        return self._folder / f"{blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()}.json"

    def _digest(self, setting: Setting) -> str:
        """Return the digest of the measurements and the workload."""
        if setting not in self._measured:
            folder, workload = Path(setting.profiles), Path(setting.workload)
            names = sorted(path.name for path in folder.glob(f"*{setting.model}*") if path.is_file())
            digest = blake2b(digest_size=_NAME_BYTES)
            for path in (*files_of([*names, "samples.csv"], folder), workload):
                digest.update(path.read_bytes() if path.exists() else b"")
            self._measured[setting] = digest.hexdigest()
        return self._measured[setting]


def run_missing(trials: Sequence[Trial], outcomes: Outcomes, jobs: int, console: Console) -> None:
    """Give every trial a result. Each is kept as it comes, so that what was stopped goes on from there."""
    left = outcomes.missing(trials)
    # A process loads its libraries for seconds: one run at a time needs none of its own.
    made = _beside_each_other(left, jobs) if jobs > 1 and left else ((trial, run(trial)) for trial in left)
    for done, (trial, outcome) in enumerate(made, 1):
        outcomes.keep(trial, outcome)
        console.print(f"{done} of {len(left)}, {outcome.cpu_s:.1f} s: {trial}", markup=False)


def _beside_each_other(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, Outcome]]:
    """Results as they come, of so many processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, install_policies) as pool:
        running = {pool.submit(run, trial): trial for trial in trials}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
