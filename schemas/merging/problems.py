"""Problems of a merging zone for its solvers about an allocation, and their solutions."""

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
"""Most step times in all tables of a problem: 1.9 MiB of the 8 MiB of its record. Units and kinds take 5 MiB
at most."""
MAX_OBJECTIVE = 1e30
"""Bound above the sum of all units' slowdowns."""
_SHARE_BYTES = 32
"""Bytes of a share besides its jobs."""


class StepTime(Record):
    """Duration of one optimizer step with a number of GPUs."""

    gpus: Gpus
    step_s: Annotated[float, Field(gt=0)]


StepTable = Annotated[tuple[StepTime, ...], Field(min_length=1, max_length=MAX_GPUS)]
"""Step times of a job by the number of GPUs, ascending, each faster than the one before."""


class JobKind(Record):
    """Jobs of equal data and hyperparameters."""

    step_table: Annotated[int, Field(ge=0)]
    """Index into `MergeProblem.step_tables`: most kinds of one model share a table."""
    samples_per_step: Annotated[int, Field(ge=1)]
    """Size of the global batch (M_i)."""
    dataset_samples: Annotated[int, Field(ge=1)]
    """Number of samples of the dataset (D_i)."""


class Unit(Record):
    """A job, or two that are already trained together, which get GPUs together."""

    job_ids: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=2)]
    kind: Annotated[int, Field(ge=0)]
    """Index into `MergeProblem.kinds`. Two jobs in one run have a separate kind."""
    iterations: Annotated[float, Field(gt=0)]
    """Remaining iterations, as estimated (K_i)."""
    waited_s: Annotated[float, Field(ge=0)]
    """Total time without GPUs; for two jobs, their mean."""
    part: Literal["none", "donor", "any"]
    """Part that it may have in a new merge: that of a temporal donor with any progress, any part without
    progress (erratum Y6)."""
    gpus: Annotated[int, Field(ge=0)]
    """Present number of its GPUs."""
    follower: Identifier | None = None
    """Receiver of the temporal merge with it as the present donor."""
    age_s: Annotated[float, Field(ge=0)] = 0.0
    """Time since its submission; for two jobs, that of the older one."""


class TransferPair(Record):
    """Two kinds of jobs that may be merged, and the expected effect."""

    mode: Literal["temporal", "spatial"]
    donor: Annotated[int, Field(ge=0)]
    """Index of the kind. For a spatial merge, the smaller one of both."""
    receiver: Annotated[int, Field(ge=0)]
    receiver_ratio: Annotated[float, Field(gt=0)]
    """Iterations that a job of the receiving kind needs, over those that it needs alone."""
    donor_ratio: Annotated[float, Field(gt=0)] = 1.0
    """Ratio of the donor in a spatial merge."""


class MergeProblem(Problem):
    """Allocation of GPUs until the next interval, and merges (Eqs. 6 to 13)."""

    kind: Literal["merge"] = "merge"
    gpus: Annotated[int, Field(ge=1)]
    """Number of GPUs (R)."""
    interval_s: Annotated[float, Field(gt=0)]
    """Least time for which a unit without GPUs waits."""
    switch_s: Annotated[float, Field(ge=0)]
    """Time that a unit loses whenever it starts or its GPUs change."""
    step_tables: Annotated[tuple[StepTable, ...], Field(min_length=1, max_length=MAX_KINDS)]
    """Step tables, all different."""
    kinds: Annotated[tuple[JobKind, ...], Field(min_length=1, max_length=MAX_KINDS)]
    units: Annotated[tuple[Unit, ...], Field(min_length=1, max_length=MAX_UNITS)]
    transfers: Annotated[tuple[TransferPair, ...], Field(max_length=MAX_TRANSFERS)] = ()
    jobs_left_out: Annotated[int, Field(ge=0)] = 0
    """Number of jobs beyond the bound of a problem, those with the shortest waits; they continue to wait."""
    kinds_restricted: Annotated[int, Field(ge=0)] = 0
    """Number of kinds whose tables have only the fewest and the present numbers of GPUs, because of too many
    tables: those whose jobs have the shortest waits."""
    watched_epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of a job's own epochs without a gain after which its merge is undone."""
    most_later: Annotated[float, Field(ge=0, le=1_000)] | None = None
    """Limit of the delay, as a part of a job's time alone with its fair share of the GPUs. A new merge is not
    planned if a job that learns in it is expected to end later than alone, or would end later by more than
    this part if the merge is undone; for the kind that would end last of all, the limit is 0. None: no
    limit."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Sizes of the problem, see `Problem`."""
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
        """Return the step table of a kind, by its index."""
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
    """Total time in which it had no GPUs and could have used some."""
    running_s: float
    attained_gpu_s: float
    asked_gpus: Gpus
    step_table: Annotated[int, Field(ge=0)]
    """Index into `RivalProblem.step_tables`."""
    iterations: Annotated[float, Field(gt=0)]
    """Total iterations, as estimated."""
    iterations_left: Annotated[float, Field(gt=0)]
    gpus: Annotated[int, Field(ge=0)]
    held_s: float
    """Time since it started or its size last changed; 0 if it waits."""
    restarts: Annotated[int, Field(ge=0)]


class RivalProblem(Problem):
    """Allocation of GPUs by a scheme without merging."""

    kind: Literal["rival_allocation"] = "rival_allocation"
    scheme: str
    interval_s: float
    time_s: float
    gpus: Annotated[int, Field(ge=1)]
    step_tables: Annotated[tuple[StepTable, ...], Field(min_length=1, max_length=MAX_KINDS)]
    """No two are equal."""
    jobs: Annotated[tuple[RivalJob, ...], Field(min_length=1, max_length=MAX_UNITS)]
    """Jobs in the order of their arrival."""
    jobs_left_out: Annotated[int, Field(ge=0)] = 0
    """Number of omitted jobs, see `MergeProblem`; likewise the next field."""
    kinds_restricted: Annotated[int, Field(ge=0)] = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """Sizes of the problem, see `Problem`."""
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
    """Mode of the share; `spatial` also for two jobs that are already trained together."""
    gpus: Gpus

    @model_validator(mode="after")
    def _as_many_jobs_as_the_mode_has(self) -> Self:
        if len(set(self.job_ids)) != JOBS_PER_MODE[self.mode]:
            raise ValueError(
                f"a share of mode {self.mode} has {JOBS_PER_MODE[self.mode]} different jobs, not "
                f"{' and '.join(self.job_ids)}"
            )
        return self


class MergeSolution(Solution):
    """The plan that was found. Jobs without a share wait."""

    kind: Literal["merge"] = "merge"
    shares: Annotated[tuple[Share, ...], Field(max_length=MAX_UNITS)]
    objective: Annotated[float, Field(ge=-MAX_OBJECTIVE, le=MAX_OBJECTIVE)] | None = None
    """Eq. 7 as corrected (errata Y1, Y2), with the cost of switches; None for schemes without it."""
    bound: Annotated[float, Field(ge=-MAX_OBJECTIVE, le=MAX_OBJECTIVE)] | None = None
    """Lower bound of the objective over all plans."""
    columns: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Number of variables of the program."""
    search: Literal["optimal", "limited"] | None = None
    """Completeness of the search. `optimal`: no plan is better than this one by over a thousandth of the
    slowdowns of its running units, nor by over a thousandth of its saving compared with waiting. `limited`:
    this is open, because of the time limit or because only the most promising choices were searched; `bound`
    limits the difference. None for schemes without an objective."""

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
        """Return the plan without its last shares, whose jobs then wait, and without values of the whole
        plan."""
        kept = list(self.shares)
        while kept and excess_bytes > 0:
            excess_bytes -= _SHARE_BYTES + sum(len(job_id) for job_id in kept.pop().job_ids)
        changes = {"shares": tuple(kept), "objective": None, "bound": None, "search": None}
        return self.model_copy(update=changes) if kept else None
