"""A job of a merging zone: its progress, its runs and its merge."""

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, Literal, cast

from schemas.decisions import JobCompleted
from schemas.facts import Facts
from schemas.fleet import RunFailed
from schemas.merging.commands import AdapterSource, JobOrder
from schemas.merging.estimates import MergeMode
from schemas.merging.workload import TuningWorkload
from streams.policies.gang.generation import Gang
from streams.policies.orders import OrderClock

_BYTES_PER_JOB = 1_600
"""Packed numbers, ids and merge of a job, and the data of its kind besides the profile."""
_BYTES_PER_NODE = 16
"""Packed numbers of a node, besides its id."""

Stage = Literal["new", "profiling", "ready"]


@dataclass
class JobMerge:
    """The present or last merge of a job."""

    mode: MergeMode
    partner: str
    partner_task: str
    """Digest of the partner's data."""
    partner_samples: int
    is_donor: bool
    """Whether it is the donor of a temporal merge, which is trained as if it were alone."""
    score: float
    gain: float
    """Forecast gain of its accuracy (G, Eq. 1)."""
    iterations: int
    """Forecast iterations."""
    iterations_alone: int
    """Forecast iterations without the merge."""
    accuracy_before: float | None
    """Accuracy that it must exceed, or the merge is undone."""
    best_accuracy: float | None = None
    """Best accuracy in the merge, including the donor's part of it."""
    joint_steps: int = 0
    """Steps of a spatial merge by now."""
    is_trial: bool = False
    """Whether it is a trial of such merges."""
    place: Literal["first", "second"] | None = None
    """Place in its pair while the pair waits to be resumed (section 5.2: its mode is kept); else None."""
    adapter_digest: str = ""
    """Digest of the adapter of a finished job that it started from; empty in a merge of two jobs."""
    equalled_iterations: int | None = None
    """Iterations after which it first had the final accuracy of jobs of its kind alone; None before."""


@dataclass
class TuningJob(Gang):
    """A job, whose processes are those of its profile run or of its task. Its only member is the node that
    leads them: it reports for all, and nodes obey commands in their order."""

    ALL_TRACK_PROGRESS: ClassVar[bool] = False

    _: KW_ONLY
    kind: str
    """Digest of its data and hyperparameters."""
    submitted_s: float
    stage: Stage = "new"
    task: str | None = None
    """Its task; None while it has none."""
    undone_generation: int = 0
    """Generation of its last undone merge: nothing of that generation and earlier ones is kept."""
    waited_s: float = 0.0
    waits_since_s: float = 0.0
    """Time at which it last had GPUs, or was submitted; meaningless while it has some."""
    running_s: float = 0.0
    attained_gpu_s: float = 0.0
    restarts: int = 0
    best_accuracy: float | None = None
    is_compared: bool = False
    """Whether it was evaluated after the watched epochs."""
    merge: JobMerge | None = None
    """Its merge, kept until the job is over."""
    never_merges: bool = False
    """Whether a merge of it was undone, or its profile is unusable."""

    def __post_init__(self) -> None:
        self.workload = cast(TuningWorkload, self.job.workload)

    @property
    def phase(self) -> str:
        is_profiling = self.stage == "profiling" and not self.is_ending
        return "profiling" if is_profiling else super().phase

    def describe(self, elapsed_s: float) -> dict[str, Any]:
        return {
            **super().describe(elapsed_s),
            "kind": self.kind,
            "stage": self.stage,
            "task": self.task,
            "iterations": self.iterations,
            "best_accuracy": self.best_accuracy,
            "is_compared": self.is_compared,
            "waited_s": self.waited_s,
            "restarts": self.restarts,
            "merge": None if self.merge is None else asdict(self.merge),
            "never_merges": self.never_merges,
        }

    @property
    def profiled_on(self) -> dict[str, int]:
        """GPUs by node of its profile run."""
        return self.members if self.stage == "profiling" else {}

    @property
    def is_undone(self) -> bool:
        """Whether its last task was an undone merge. Late reports of that task do not count."""
        return 0 < self.generation == self.undone_generation

    @property
    def keeps_progress(self) -> bool:
        return not self.is_undone

    def tracks_progress(self, leads: bool) -> bool:
        return leads and self.stage != "profiling"

    @property
    def iterations(self) -> int:
        """Number of optimizer steps that are done."""
        return self.job.samples_done // self.workload.hyperparameters.batch_size

    @property
    def starts_from(self) -> AdapterSource | None:
        """Adapter of a finished job that it started from; None without one."""
        if self.merge is None or not self.merge.adapter_digest:
            return None
        return AdapterSource(job_id=self.merge.partner, digest=self.merge.adapter_digest)

    @property
    def state_bytes(self) -> int:
        nodes = (*self.members, *self.leaving, self.leader)
        return _BYTES_PER_JOB + self.ending_bytes + sum(_BYTES_PER_NODE + len(node) for node in nodes)

    def order(self, run_id: str) -> JobOrder:
        """Return its order to an executor."""
        return JobOrder(
            run_id=run_id,
            job_id=self.job_id,
            user=self.job.user,
            workload=self.workload,
            resume_iterations=self.iterations,
            oldest_generation=self.undone_generation + 1,
            starts_from=self.starts_from,
        )

    def fail(self, report: RunFailed, orders: OrderClock, backs_off: bool = False) -> Facts:
        """Count a failed run, see `GangJob.fail`. A failed profile run ends a job only if the failure is
        permanent. Otherwise the data may be sound, and the job runs unmerged."""
        facts = super().fail(report, orders, backs_off)
        if self.stage == "profiling" and self.is_ending and not report.permanent:
            self.given_up, self.failures, self.stage, self.never_merges = None, 0, "ready", True
        return facts

    def reset(self) -> None:
        """Set back all progress."""
        self.job.samples_done, self.best_accuracy, self.is_compared = 0, None, False
        if self.merge is not None:
            self.merge.best_accuracy = self.merge.equalled_iterations = None

    def discard_progress(self) -> None:
        """Discard all progress of the job. Reports of this generation and earlier ones no longer count."""
        self.reset()
        self.furthest_samples = 0
        self.undone_generation = self.generation

    def completed(self, zone: str, node: str, samples_done: int, **results: Any) -> JobCompleted:
        accuracies = {"accuracy": self.best_accuracy, "target_accuracy": self.workload.target.accuracy}
        return super().completed(zone, node, samples_done, **accuracies, **results)
