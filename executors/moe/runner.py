"""The runner `moe` on a node: mixture-of-experts jobs whose ranks begin and end by the cell's commands.

All ranks of a generation begin and end together. The kind of a job determines whether it trains or serves:
see `RANK_WORK`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from executors.gang.local_gang import GangTraits
from executors.gang.messages import Instruction, Members, RankOrder
from executors.gang.runner import GangRunner
from executors.node.runner import Objection
from schemas.commands import Command
from schemas.experts.commands import ExpertsPlaced, LayerPlacement, MoeWorkload, RanksAssigned, RanksReleased
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted

RANK_WORK: Mapping[str, str] = MappingProxyType(
    {
        "moe-serve": "executors.moe.serving.rank:run_rank",
        "moe-train": "executors.moe.training.rank:run_rank",
    }
)
"""`module:function` by the `kind` of a workload. Names, without imports: the node's process has no torch."""


class MoeOrder(RankOrder[MoeWorkload]):
    """See `RankOrder`."""

    workload: MoeWorkload
    report_interval_s: float
    revision: int
    placement: tuple[LayerPlacement, ...]
    expert_memory_gib: float | None


def members_of(command: RanksAssigned) -> Members:
    return Members(tuple((member.node, member.ranks) for member in command.members))


class MoeRunner(GangRunner[RanksAssigned]):
    """See `GangRunner`."""

    ASSIGNED = (RanksAssigned,)
    RELEASED = RanksReleased
    TRAITS: ClassVar = GangTraits[RanksAssigned](
        order=MoeOrder,
        members_of=members_of,
        work_of=lambda command: RANK_WORK[command.workload.kind],
        reports=(ExpertsProfiled, ExpertsRouted),
    )
    VERDICTS: ClassVar = {**GangRunner.VERDICTS, "ended": "stop"}

    def objection(self, command: RanksAssigned) -> Objection | None:
        if (impossible := super().objection(command)) is not None:
            return impossible
        kind, world = command.workload.kind, members_of(command).world
        if kind not in RANK_WORK:
            known = ", ".join(sorted(RANK_WORK))
            return Objection("impossible", f"no ranks for jobs of kind {kind} here: there are {known}")
        if world != command.workload.ranks:
            detail = f"the members have {world} ranks, the job {command.workload.ranks}"
            return Objection("impossible", detail)
        return None

    def apply(self, command: Command) -> None:
        if isinstance(command, ExpertsPlaced):
            self._place_experts(command)
        else:
            super().apply(command)

    def _place_experts(self, command: ExpertsPlaced) -> None:
        for gang in self.of((command.job_id,)):
            order = gang.command
            if order.generation != command.generation:
                continue
            if gang.has_begun:
                data = command.model_dump(mode="json", include={"revision", "layers"})
                gang.processes.send(Instruction(data=data))
            else:
                layers = {layer.layer: layer for layer in (*order.placement, *command.layers)}
                placed = {"revision": command.revision, "placement": tuple(layers.values())}
                gang.command = order.model_copy(update=placed)
