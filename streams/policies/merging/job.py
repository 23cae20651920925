"""A job of a merging zone: how far it is, which run it is in, and what became of its merge."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, cast

from schemas.decisions import JobCompleted
from schemas.merging.commands import JobOrder
from schemas.merging.estimates import MergeMode
from schemas.merging.workload import TuningWorkload
from streams.policies.gang.job import GangJob

_BYTES_PER_JOB = 1_568
"""Packed: numbers, ids, a merge, and of its kind what is no profile."""
_BYTES_PER_RUN = 8

Stage = Literal["new", "profiling", "ready"]


@dataclass
class Merge:
    """The merge that a job is in, or was in."""

    mode: MergeMode
    partner: str
    partner_task: str
    """Digest of the partner's data."""
    partner_samples: int
    is_donor: bool
    """Whether it is the donor of a temporal merge: its own run is as if it were alone."""
    score: float
    gain: float
    """Forecast gain of its accuracy (G, Eq. 1)."""
    iterations: int
    """Forecast."""
    iterations_alone: int
    """Forecast without the merge."""
    accuracy_before: float | None
    """Accuracy that it must exceed for the merge to be kept."""
    best_accuracy: float | None = None
    """In the merge, the donor's part of it included."""
    joint_steps: int = 0
    """Steps of a spatial merge so far."""
    is_trial: bool = False
    """Whether it was made to find out whether such merges pay."""


@dataclass
class TuningJob(GangJob):
    """See `GangJob`."""

    _: KW_ONLY
    kind: str
    """Digest of its data and hyperparameters."""
    submitted_s: float
    stage: Stage = "new"
    run_id: str | None = None
    """Its run in its task, or its profile run; None while it has none."""
    stopping: dict[str, str] = field(default_factory=dict)
    """Runs that were told to end and have not said that they did, and the nodes that lead them."""
    profiled_on: dict[str, int] = field(default_factory=dict)
    """GPUs by node of its profile run."""
    task: str | None = None
    """The task that it is part of."""
    generation: int = 0
    """Generation of the last task that its nodes were ordered to run it in."""
    undone_generation: int = 0
    """Generation of the last merge of it that was undone: nothing is kept of that one, and of those
    before."""
    waited_s: float = 0.0
    waits_since_s: float = 0.0
    """When it last had GPUs, or was submitted. Says nothing of a job that has some."""
    running_s: float = 0.0
    attained_gpu_s: float = 0.0
    restarts: int = 0
    best_accuracy: float | None = None
    is_compared: bool = False
    """Whether it was evaluated after the watched epochs."""
    merge: Merge | None = None
    """Stays until the job is over."""
    never_merges: bool = False
    """A merge of it was undone, or its profile is of no use."""

    def __post_init__(self) -> None:
        self.workload = cast(TuningWorkload, self.job.workload)

    @property
    def is_undone(self) -> bool:
        """Whether its last task was a merge that was undone: what its runs still say is of no use."""
        return 0 < self.generation == self.undone_generation

    @property
    def iterations(self) -> int:
        """Optimizer steps of it that are done."""
        return self.job.samples_done // self.workload.hyperparameters.batch_size

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot."""
        runs = sum(_BYTES_PER_RUN + len(run) + len(node) for run, node in self.stopping.items())
        return _BYTES_PER_JOB + runs + self.ending_bytes

    def order(self, run_id: str) -> JobOrder:
        """Return its order to an executor."""
        return JobOrder(
            run_id=run_id,
            job_id=self.job_id,
            user=self.job.user,
            workload=self.workload,
            resume_iterations=self.iterations,
            oldest_generation=self.undone_generation + 1,
        )

    def lose(self) -> None:
        """Nothing of what it has learned is left: it begins anew."""
        self.job.samples_done, self.best_accuracy, self.is_compared = 0, None, False
        if self.merge is not None:
            self.merge.best_accuracy = None

    def undo(self) -> None:
        """Keep nothing of the merge that it is in."""
        self.lose()
        self.furthest_samples = 0
        self.undone_generation = self.generation

    def completed(self, zone: str, node: str, samples_done: int, **results: Any) -> JobCompleted:
        accuracies = {"accuracy": self.best_accuracy, "target_accuracy": self.workload.target.accuracy}
        return super().completed(zone, node, samples_done, **accuracies, **results)
