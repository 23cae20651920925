"""The demo's second scene: load falls, a server is lent, a job spreads to it; load rises, and it is back."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.demo.stage import Stage
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from schemas.codec import Decision, Envelope
from schemas.decisions import JobCompleted
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import NodeOnline, RunStarted
from schemas.inference import InferenceLoadReported
from schemas.loans import LoanChanged, ReclaimEnded
from schemas.lora import Dataset

SCENE_LIMIT_S = 90.0
HASTE: Mapping[str, str] = {
    "MILLRACE_CHECKPOINT_S": "1",
    "MILLRACE_LENDER_FORECASTER": "seasonal",
    "MILLRACE_LENDER_INTERVAL_S": "0.5",
    "MILLRACE_LENDER_STEADY_S": "1",
    "MILLRACE_LENDER_MARGIN_QUANTILE": "0",
    "MILLRACE_LENDER_UNKNOWN_S": "30",
    "MILLRACE_LENDER_DELAY_S": "1",
}
"""For a lender and executors to whom seconds are what minutes are to real ones."""

_JOB, _MODEL = "spreading", "tiny-llama"
_BUSY, _QUIET = 0.9, 0.0
"""Loads at which the zone needs both of its servers, and one."""
_WORK_SAMPLES = 2_000
_TOGETHER_S = 4.0
"""So long two workers train before the load rises."""
_REPORT_S = 0.25
_MODEL_S = 120.0


@contextmanager
def default_model(folder: Path) -> Iterator[Callable[[], None]]:
    """Have the small default model found, and made if there is none. What the block is given waits until the
    model lies in `folder`.

    Raises:
        CommandError: it cannot be made.
    """
    # torch is loaded by another process, and meanwhile the services start.
    command = [sys.executable, "-m", "executors.lora.default_base"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as making:

        def copied() -> None:
            found, said = making.communicate(timeout=_MODEL_S)
            if making.returncode:
                raise CommandError(f"the default model cannot be made: {said.strip()}")
            shutil.copytree(found.strip(), folder / _MODEL)

        try:
            yield copied
        finally:
            making.kill()


@dataclass
class LoanScene:
    """Plays the inference side of a cell, submits a job, and notes what becomes of both."""

    stage: Stage
    inference: EventPublisher
    dataset: Dataset
    has_spread: bool = False
    """Whether the job's workers on the lent server have trained."""
    reclaim: str | None = None
    """How the reclaim has ended."""
    completed: JobCompleted | None = None
    _load: float = _BUSY
    _next_report_s: float = 0.0
    _lent: str | None = None
    _online: set[str] = field(default_factory=set)
    _members: set[str] = field(default_factory=set)
    """Where the job's workers have begun."""

    @property
    def shortcomings(self) -> list[str]:
        """What the scene was to show and did not."""
        found = []
        if self._lent is None:
            found.append("no server was lent when the load fell")
        elif not self.has_spread:
            found.append(f"{_JOB} did not spread to {self._lent}")
        elif self.reclaim != "in_time":
            found.append(f"{self._lent} was not back in time")
        if self.completed is None or self.completed.samples_done != _WORK_SAMPLES:
            found.append(f"{_JOB} has not trained all of its {_WORK_SAMPLES} samples")
        return found

    def play(self, ready_s: float, has_model: Callable[[], None]) -> None:
        """Wait for the executors, then play for `SCENE_LIMIT_S` at most.

        Raises:
            CommandError: an executor is not online within `ready_s`, or a service cannot be kept running.
            PublishError: the broker does not take an event.
            ReadError: the log cannot be read.
        """
        self._note(self.stage.follower.catch_up())
        has_model()
        servers = {node.id for zone in self.stage.cell.zones for node in zone.nodes}
        if not self._until(lambda: self._online >= servers, time.monotonic() + ready_s):
            raise CommandError(f"not online within {ready_s:g} s: {', '.join(servers - self._online)}")
        end_s = time.monotonic() + SCENE_LIMIT_S
        self.stage.show.say(f"*** {_JOB} is submitted: it can use one server or two, and there is one")
        self._submit()
        self._until(lambda: bool(self._members), end_s)
        self.stage.show.say("*** the inference load falls")
        self._load = _QUIET
        self._until(lambda: self._lent in self._members, end_s)
        together_s = min(time.monotonic() + _TOGETHER_S, end_s)
        self._until(lambda: self.completed is not None, together_s)
        self.has_spread = self._lent in self._members
        self.stage.show.say("*** the inference load rises")
        self._load = _BUSY
        self._until(lambda: self.reclaim is not None and self.completed is not None, end_s)

    def _submit(self) -> None:
        training, _ = self.stage.cell.zones
        workload = ElasticWorkload(
            work_samples=_WORK_SAMPLES,
            model=_MODEL,
            dataset=self.dataset,
            hyperparameters=TrainingHyperparameters(
                global_batch_size=8, micro_batch_size=4, sequence_length=64, learning_rate=1e-3
            ),
            max_workers=2,
            samples_per_s=80.0,
            heterogeneous=True,
        )
        self.stage.submit(training.id, _JOB, workload, ElasticTerms())

    def _until(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Report the load and take in what happens until something is so; False if it is not in time."""

        def is_so() -> bool:
            if condition():
                return True
            self._report()
            return False

        return self.stage.until(is_so, self._note, deadline_s)

    def _report(self) -> None:
        if time.monotonic() < self._next_report_s:
            return
        self._next_report_s = time.monotonic() + _REPORT_S
        _, serving = self.stage.cell.zones
        cell = self.stage.cell.cell
        self.inference.publish(
            InferenceLoadReported(cell=cell, zone=serving.id, time_s=time.time(), load=self._load)
        )

    def _note(self, records: Sequence[Envelope | Decision]) -> None:
        for record in records:
            match record.outcome if isinstance(record, Decision) else record.event:
                case NodeOnline(node=node):
                    self._online.add(node)
                case LoanChanged(server=server, status="on_loan"):
                    self._lent = server
                case RunStarted(job_id=job_id, node=node) if job_id == _JOB:
                    self._members.add(node)
                case ReclaimEnded(status=status) if self.reclaim is None:
                    self.reclaim = status
                case JobCompleted() as completed if completed.job_id == _JOB:
                    self.completed = completed
