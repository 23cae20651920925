"""The demo's loan: load falls, a server is lent, a job spreads to it; load rises, and it is back."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from infra.demo.demo_environment import MODEL, Record, Stage
from schemas.codec import Decision
from schemas.decisions import JobCompleted
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import RunProgressed, RunStarted
from schemas.inference import InferenceLoadReported
from schemas.loans import LoanChanged, ReclaimEnded
from schemas.lora import Dataset

FAST_LENDER: Mapping[str, str] = {
    "MILLRACE_LENDER_FORECASTER": "seasonal",
    "MILLRACE_LENDER_INTERVAL_S": "0.5",
    "MILLRACE_LENDER_STEADY_S": "1",
    "MILLRACE_LENDER_MARGIN_QUANTILE": "0",
    "MILLRACE_LENDER_UNKNOWN_S": "30",
    "MILLRACE_LENDER_DELAY_S": "1",
}
"""Settings of a lender whose times are seconds in place of minutes."""


def lender_settings(pace: float) -> Mapping[str, str]:
    """Return the settings of the lender for a machine that is `pace` times slower."""
    slower = ("MILLRACE_LENDER_UNKNOWN_S", "MILLRACE_LENDER_DELAY_S")
    return {**FAST_LENDER, **{name: str(round(float(FAST_LENDER[name]) * pace, 1)) for name in slower}}


_JOB = "spreading"
_BUSY, _QUIET = 0.9, 0.0
"""Loads at which the zone needs both of its servers, and one."""
_WORK_SAMPLES = 1_200
_TOGETHER_SAMPLES = 160
"""Samples that the job trains on two servers before the load rises."""
_REPORT_S = 0.25


@dataclass
class LoanScene:
    """Reports the load of an inference zone, submits a job, and records the loan and the job's result."""

    stage: Stage
    dataset: Dataset
    has_spread: bool = False
    """Whether the job's workers on the lent server have trained."""
    reclaim: str | None = None
    """Status with which the reclaim has ended."""
    completed: JobCompleted | None = None
    _load: float = _BUSY
    _next_report_s: float = 0.0
    _lent: str | None = None
    _members: set[str] = field(default_factory=set)
    """Nodes on which the job's workers have started."""
    _samples: int = 0
    """Samples that the job has trained."""

    @property
    def shortcomings(self) -> list[str]:
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

    @property
    def summary(self) -> str:
        return "an idle inference server was lent to a training job, which used both, and was back in time"

    def play(self) -> Iterator[str]:
        show = self.stage.progress.show
        yield from self.stage.online("elastic", "inference")
        show(f"*** {_JOB} is submitted: it can use one server or two, and there is one")
        self._submit()
        yield from self._until(lambda: bool(self._members), f"{_JOB} to train")
        show("*** the inference load falls")
        self._load = _QUIET
        yield from self._until(lambda: self._lent in self._members, f"{_JOB} to spread to a lent server")
        self.has_spread = True
        enough = self._samples + _TOGETHER_SAMPLES
        yield from self._until(
            lambda: self.completed is not None or self._samples >= enough, "both servers to train"
        )
        show("*** the inference load rises")
        self._load = _BUSY
        yield from self._until(lambda: self.reclaim is not None, "the lent server to be back")
        yield from self._until(lambda: self.completed is not None, f"{_JOB} to be done")

    def note(self, records: Sequence[Record]) -> None:
        self.stage.refuse_lost(records, [_JOB])
        for record in records:
            match record.outcome if isinstance(record, Decision) else record.event:
                case LoanChanged(server=server, status="on_loan"):
                    self._lent = server
                case RunStarted(job_id=job_id, node=node) if job_id == _JOB:
                    self._members.add(node)
                case RunProgressed(job_id=job_id, samples_done=samples) if job_id == _JOB:
                    self._samples = max(self._samples, samples)
                case ReclaimEnded(status=status) if self.reclaim is None:
                    self.reclaim = status
                case JobCompleted() as completed if completed.job_id == _JOB:
                    self.completed = completed

    def _submit(self) -> None:
        workload = ElasticWorkload(
            work_samples=_WORK_SAMPLES,
            model=MODEL,
            dataset=self.dataset,
            hyperparameters=TrainingHyperparameters(
                global_batch_size=8, micro_batch_size=4, sequence_length=64, learning_rate=1e-3
            ),
            max_workers=2,
            samples_per_s=80.0,
            heterogeneous=True,
        )
        self.stage.submit(self.stage.zone("elastic").id, _JOB, workload, ElasticTerms())

    def _until(self, condition: Callable[[], bool], awaited: str) -> Iterator[str]:
        """Report the load until a condition holds."""
        while not condition():
            if time.monotonic() >= self._next_report_s:
                self._next_report_s = time.monotonic() + _REPORT_S
                self.stage.send(
                    InferenceLoadReported(
                        cell=self.stage.cell.cell,
                        zone=self.stage.zone("inference").id,
                        time_s=time.time(),
                        load=self._load,
                    ),
                    "inference",
                )
            yield awaited
