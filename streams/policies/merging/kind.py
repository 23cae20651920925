"""The manifest of the merging policy."""

from schemas.fleet import FLEET
from schemas.kind import Input, PolicyKind, Solve
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.estimates import EstimateProblem, EstimateSolution
from schemas.merging.outcomes import (
    JobForetold,
    MergeEvaluated,
    PlanDecided,
    QueuedTask,
    TaskChanged,
)
from schemas.merging.problems import MergeProblem, MergeSolution, RivalProblem
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import MergingTerms, TuningWorkload

MERGING = PolicyKind(
    settings=MergingPolicy,
    zone="streams.policies.merging.zone:MergingZone",
    workloads=(TuningWorkload,),
    terms=(MergingTerms,),
    evidence=(QueuedTask,),
    inputs=(Input(TaskProfiled, FLEET), Input(TaskEvaluated, FLEET)),
    outcomes=(
        *(JobForetold, TaskChanged, MergeEvaluated, PlanDecided),
        *(ProfileOrdered, TaskAssigned, TaskReleased, LoaderPrewarmed),
    ),
    reasons={
        "job.admitted": ("queued",),
        "job.rejected": ("larger_than_the_zone", "other_base_model"),
        "event.ignored": ("job_ending",),
    },
    solves=(
        Solve(
            problem=MergeProblem,
            solution=MergeSolution,
            function="solvers.merging.careful:plan",
            smallest="solvers.merging.merger:smallest",
        ),
        Solve(
            problem=RivalProblem,
            solution=MergeSolution,
            function="solvers.merging.rivals:allocate",
            smallest="solvers.merging.rivals:smallest",
        ),
        Solve(
            problem=EstimateProblem,
            solution=EstimateSolution,
            function="solvers.merging.estimator:estimate",
            smallest="solvers.merging.estimator:smallest",
        ),
    ),
)
