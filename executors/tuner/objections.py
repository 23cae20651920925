"""Why a node does not take on a task or a profile run that no cell would send it."""

from executors.node.runner import Objection
from executors.tuner.assignments import local_ranks, world_size
from schemas.base import MAX_TEXT_LENGTH
from schemas.merging.commands import ProfileOrdered, TaskAssigned
from schemas.merging.settings import STAGES_PER_PIPELINE


def objection_to(command: TaskAssigned | ProfileOrdered, gpus_here: int) -> Objection | None:
    """See whether a command makes sense: its members are distinct, its GPUs are there and as many as its jobs
    may have, and no job is merged that must not be.

    Args:
        gpus_here: of this node.
    """
    if isinstance(command, TaskAssigned):
        return _members(command) or _gpus(command, gpus_here, "task") or _merge(command)
    gpus = command.gpus
    if gpus > 1 and not command.order.workload.pipeline:
        return Objection("impossible", f"a profile run on {gpus} GPUs: only pipelines have more")
    return _gpus(command, gpus_here, "profile run")


def _members(command: TaskAssigned) -> Objection | None:
    nodes = [member.node for member in command.members]
    jobs = [order.job_id for order in command.orders]
    if len(set(nodes)) < len(nodes):
        return Objection("impossible", "a node is among the members twice")
    if command.node not in nodes:
        detail = f"{command.node} is not among the members {', '.join(nodes)}"
        return Objection("impossible", detail[:MAX_TEXT_LENGTH])
    if len(set(jobs)) < len(jobs):
        return Objection("impossible", f"{jobs[0]} is merged with itself")
    return None


def _gpus(command: TaskAssigned | ProfileOrdered, gpus_here: int, what: str) -> Objection | None:
    order = command.orders[0] if isinstance(command, TaskAssigned) else command.order
    gpus, needed = world_size(command), len(local_ranks(command))
    if order.workload.pipeline and gpus % STAGES_PER_PIPELINE:
        return Objection(
            "impossible",
            f"{order.job_id} is pipeline-parallel: a {what} of it has a multiple of {STAGES_PER_PIPELINE} "
            f"GPUs, not {gpus}",
        )
    if needed > gpus_here:
        return Objection("impossible", f"the {what} needs {needed} GPUs here, the node has {gpus_here}")
    return None


def _merge(command: TaskAssigned) -> Objection | None:
    for order in command.orders if command.mode != "normal" else ():
        if order.workload.pipeline:
            return Objection("impossible", f"{order.job_id} is pipeline-parallel, and is merged")
        if not order.workload.sharing:
            return Objection("impossible", f"{order.job_id} does not share, and is merged")
    return None
