"""The runner `elastic` on a node: data-parallel jobs whose numbers of workers change by the cell's commands.

A worker of such a job is one rank for each of its GPUs. The thesis embeds a controller in each elastic job,
which coordinates workers that join and leave (section 3.6). Here it is the job's rank 0, see
`executors.gang.rank`.
"""

from typing import ClassVar, cast

from executors.gang.local_gang import GangTraits
from executors.gang.messages import Members, RankOrder
from executors.gang.runner import GangRunner, Releasing
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.elastic.workload import ElasticWorkload


class ElasticOrder(RankOrder[ElasticWorkload]):
    """See `RankOrder`."""

    least_sequence_s: float


def members_of(command: WorkersAssigned) -> Members:
    """Return the nodes of a generation: each worker is a rank for each of its GPUs."""
    gpus = command.workload.gpus_per_worker
    return Members(tuple((member.node, member.workers * gpus) for member in command.members))


class ElasticRunner(GangRunner[WorkersAssigned]):
    """See `GangRunner`. The present ranks continue in a generation that does not resume from a checkpoint."""

    ASSIGNED = (WorkersAssigned,)
    RELEASED = WorkersReleased
    TRAITS: ClassVar = GangTraits[WorkersAssigned](
        order=ElasticOrder,
        members_of=members_of,
        work_of=lambda _: "executors.elastic.rank:run_rank",
        keeps_checkpoints=lambda command: command.workload.keeps_checkpoints,
        repeats_progress=False,
    )
    VERDICTS: ClassVar = {**GangRunner.VERDICTS, "scaled_in": "leave"}

    def is_continued(self, command: WorkersAssigned) -> bool:
        return not command.resumes

    def release_deadline_s(self, command: Releasing) -> float | None:
        return cast(WorkersReleased, command).by_s
