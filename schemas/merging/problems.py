"""Questions of a merging zone to its solvers about an allocation, and their answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Identifier, Record
from schemas.kind import Problem, Solution
from schemas.merging.commands import JOBS_PER_MODE, TransferMode
from schemas.merging.workload import MAX_GPUS, Gpus

MAX_UNITS = 10_000
MAX_KINDS = 10_000
MAX_TRANSFERS = 16_384
MAX_STEP_TIMES = 40_000
"""Step times in all tables of a question: 1.9 MiB of the 8 MiB that its record has room for. Units and
kinds at their largest take 5 MiB."""
MAX_OBJECTIVE = 1e30
"""More than all units together may be slowed down."""
_SHARE_BYTES = 32
"""Bytes of a share, beside its jobs."""


class StepTime(Record):
    """Duration of one optimizer step with a number of GPUs."""

    gpus: Gpus
    step_s: Annotated[float, Field(gt=0)]


StepTable = Annotated[tuple[StepTime, ...], Field(min_length=1, max_length=MAX_GPUS)]
"""The numbers of GPUs that a job may have, ascending, each faster than the one before."""


class JobKind(Record):
    """Jobs of equal data and hyperparameters."""

    step_table: Annotated[int, Field(ge=0)]
    """Index into `MergeProblem.step_tables`: most kinds of one model share one."""
    samples_per_step: Annotated[int, Field(ge=1)]
    """The global batch (M_i)."""
    dataset_samples: Annotated[int, Field(ge=1)]
    """D_i."""


class Unit(Record):
    """A job, or two that are trained together already, which get GPUs as one."""

    job_ids: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=2)]
    kind: Annotated[int, Field(ge=0)]
    """Index into `MergeProblem.kinds`. Of two jobs in one run, a kind of their own."""
    iterations: Annotated[float, Field(gt=0)]
    """That are left, as estimated (K_i)."""
    waited_s: Annotated[float, Field(ge=0)]
    """Time that it has had no GPUs, in all; of two jobs, their mean."""
    part: Literal["none", "donor", "any"]
    """Part that it may take in a new merge: a donor of a temporal one whatever its progress, anything with
    none (erratum Y6)."""
    gpus: Annotated[int, Field(ge=0)]
    """GPUs that it has now."""
    follower: Identifier | None = None
    """The receiver of the temporal merge that it is the donor of now."""
    age_s: Annotated[float, Field(ge=0)] = 0.0
    """Since its submission; of two jobs, of the older one."""


class Transfer(Record):
    """That two kinds of jobs may be merged, and what it is taken to bring."""

    mode: Literal["temporal", "spatial"]
    donor: Annotated[int, Field(ge=0)]
    """Index of the kind. Of a spatial merge, the one of both that comes first in `kinds`."""
    receiver: Annotated[int, Field(ge=0)]
    receiver_ratio: Annotated[float, Field(gt=0)]
    """Iterations that a job of the receiving kind needs, over those that it needs alone."""
    donor_ratio: Annotated[float, Field(gt=0)] = 1.0
    """The same of the donor, of a spatial merge."""


class MergeProblem(Problem):
    """Who gets how many GPUs until the next interval, and who is merged with whom (Eqs. 6 to 13)."""

    kind: Literal["merge"] = "merge"
    gpus: Annotated[int, Field(ge=1)]
    """R."""
    interval_s: Annotated[float, Field(gt=0)]
    """A unit without GPUs waits for at least so long."""
    switch_s: Annotated[float, Field(ge=0)]
    """Time that a unit loses whenever it starts or its GPUs change."""
    step_tables: Annotated[tuple[StepTable, ...], Field(min_length=1, max_length=MAX_KINDS)]
    """No two are equal."""
    kinds: Annotated[tuple[JobKind, ...], Field(min_length=1, max_length=MAX_KINDS)]
    units: Annotated[tuple[Unit, ...], Field(min_length=1, max_length=MAX_UNITS)]
    transfers: Annotated[tuple[Transfer, ...], Field(max_length=MAX_TRANSFERS)] = ()
    jobs_left_out: Annotated[int, Field(ge=0)] = 0
    """Jobs that are not asked about, as there are too many: those that have waited least. They wait."""
    kinds_restricted: Annotated[int, Field(ge=0)] = 0
    """Kinds of which the table has only the fewest GPUs and what jobs have now, as there are too many tables:
    those whose jobs have waited least."""
    watched_epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """After so many of its own epochs without a gain a job's merge is undone."""
    most_later: Annotated[float, Field(ge=0, le=1_000)] | None = None
    """Limit on delay, as a part of the time that a job takes alone with its fair share of the GPUs. A new
    merge is not planned where a job that learns in it is expected to end later than alone, or where it would
    end later by more than this part if the merge is undone; for the kind that would end last of all, the
    limit is 0. None: no limit."""

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Problem`."""
        return {
            "gpus": self.gpus,
            "jobs": sum(len(unit.job_ids) for unit in self.units),
            "pairs": len(self.transfers),
            "jobs_left_out": self.jobs_left_out,
            "kinds_restricted": self.kinds_restricted,
        }

    @property
    def job_ids(self) -> Iterator[str]:
        """The jobs that it is about, in their order."""
        return (job_id for unit in self.units for job_id in unit.job_ids)

    def steps_of(self, kind: int) -> tuple[StepTime, ...]:
        """The table of a kind, by its index."""
        return self.step_tables[self.kinds[kind].step_table]

    @model_validator(mode="after")
    def _tables_exist(self) -> Self:
        named = ((f"kinds[{index}]", kind.step_table) for index, kind in enumerate(self.kinds))
        _check_tables(self.step_tables, named)
        return self

    @model_validator(mode="after")
    def _kinds_exist(self) -> Self:
        kinds = (unit.kind for unit in self.units)
        transfers = (max(one.donor, one.receiver) for one in self.transfers)
        if max(chain(kinds, transfers)) < len(self.kinds):
            return self
        named = (
            *(("units", index, unit.kind) for index, unit in enumerate(self.units)),
            *(("transfers", index, max(one.donor, one.receiver)) for index, one in enumerate(self.transfers)),
        )
        for field, index, kind in named:
            if kind >= len(self.kinds):
                raise ValueError(f"{field}[{index}]: there is no kind {kind}; there are {len(self.kinds)}")
        return self


class RivalJob(Record):
    """A job that waits for GPUs or has some, as a scheme without merging sees it."""

    job_id: Identifier
    submitted_s: float
    waited_s: float
    """In which it had no GPUs and could have used some, in all."""
    running_s: float
    attained_gpu_s: float
    asked_gpus: Gpus
    step_table: Annotated[int, Field(ge=0)]
    """Index into `RivalProblem.step_tables`."""
    iterations: Annotated[float, Field(gt=0)]
    """In all, as estimated."""
    iterations_left: Annotated[float, Field(gt=0)]
    gpus: Annotated[int, Field(ge=0)]
    held_s: float
    """Since it started or its size last changed; 0 if it waits."""
    restarts: Annotated[int, Field(ge=0)]


class RivalProblem(Problem):
    """Who gets how many GPUs by a scheme that merges nothing."""

    kind: Literal["rival_allocation"] = "rival_allocation"
    scheme: str
    interval_s: float
    time_s: float
    gpus: Annotated[int, Field(ge=1)]
    step_tables: Annotated[tuple[StepTable, ...], Field(min_length=1, max_length=MAX_KINDS)]
    """No two are equal."""
    jobs: Annotated[tuple[RivalJob, ...], Field(min_length=1, max_length=MAX_UNITS)]
    """In the order of their arrival."""
    jobs_left_out: Annotated[int, Field(ge=0)] = 0
    """See `MergeProblem`; likewise the next."""
    kinds_restricted: Annotated[int, Field(ge=0)] = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Problem`."""
        return {
            "gpus": self.gpus,
            "jobs": len(self.jobs),
            "jobs_left_out": self.jobs_left_out,
            "kinds_restricted": self.kinds_restricted,
        }

    @property
    def job_ids(self) -> Iterator[str]:
        """The jobs that it is about, in their order."""
        return (job.job_id for job in self.jobs)

    @model_validator(mode="after")
    def _tables_exist(self) -> Self:
        _check_tables(
            self.step_tables, ((f"jobs[{index}]", job.step_table) for index, job in enumerate(self.jobs))
        )
        return self


def _check_tables(tables: Sequence[Sequence[StepTime]], named: Iterable[tuple[str, int]]) -> None:
    step_times = sum(map(len, tables))
    if step_times > MAX_STEP_TIMES:
        raise ValueError(f"step_tables: have {step_times} step times, at most {MAX_STEP_TIMES} are read")
    for field, table in named:
        if table >= len(tables):
            raise ValueError(f"{field}.step_table: there is no table {table}; there are {len(tables)}")


class Share(Record):
    """GPUs for a unit, or for two that are merged."""

    job_ids: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=2)]
    """Jobs of the share, the donor of a temporal merge first."""
    mode: TransferMode
    """`spatial` also for two jobs that are trained together already."""
    gpus: Gpus

    @model_validator(mode="after")
    def _as_many_jobs_as_the_mode_has(self) -> Self:
        if len(set(self.job_ids)) != JOBS_PER_MODE[self.mode]:
            raise ValueError(
                f"a share of mode {self.mode} is of {JOBS_PER_MODE[self.mode]} different jobs, not of "
                f"{' and '.join(self.job_ids)}"
            )
        return self


class MergeSolution(Solution):
    """The plan that was found. Who is not in it waits."""

    kind: Literal["merge"] = "merge"
    shares: Annotated[tuple[Share, ...], Field(max_length=MAX_UNITS)]
    objective: Annotated[float, Field(ge=-MAX_OBJECTIVE, le=MAX_OBJECTIVE)] | None = None
    """Eq. 7 as corrected (errata Y1, Y2), and what switches cost; None of schemes without it."""
    bound: Annotated[float, Field(ge=-MAX_OBJECTIVE, le=MAX_OBJECTIVE)] | None = None
    """No plan has a smaller objective."""
    columns: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Variables of the program."""
    search: Literal["optimal", "limited"] | None = None
    """`optimal`: no plan is better than this one by over a thousandth of the slowdowns of the units that run
    in it, nor by over a thousandth of what it saves beside waiting.
    `limited`: time, or that only the most promising choices were looked at, leaves that open; `bound` says
    how far off it can be. None of schemes without an objective."""

    @model_validator(mode="after")
    def _a_share_for_a_job(self) -> Self:
        seen: set[str] = set()
        for share in self.shares:
            for job_id in share.job_ids:
                if job_id in seen:
                    raise ValueError(f"shares: job {job_id} has two")
                seen.add(job_id)
        return self

    def shortened(self, excess_bytes: int) -> Self | None:
        """Without shares at the end, whose jobs wait, and without what holds of the whole plan."""
        kept = list(self.shares)
        while kept and excess_bytes > 0:
            excess_bytes -= _SHARE_BYTES + sum(len(job_id) for job_id in kept.pop().job_ids)
        changes = {"shares": tuple(kept), "objective": None, "bound": None, "search": None}
        return self.model_copy(update=changes) if kept else None
