"""Objections of a node to a task or profile run that no correct cell would send."""

from executors.node.runner import Objection
from executors.tuner.assignments import members_of
from schemas.merging.commands import JobOrder, ProfileOrdered, TaskAssigned
from schemas.merging.settings import STAGES_PER_PIPELINE


def objection_to(command: TaskAssigned | ProfileOrdered, gpus_here: int) -> Objection | None:
    """Check that a command is consistent: its members are distinct, its GPUs exist and are within the limits
    of its jobs, and the jobs may be merged.

    Args:
        gpus_here: GPUs of this node.
    """
    members = members_of(command).objection(command.node, gpus_here)
    if isinstance(command, TaskAssigned):
        return _pipeline(command.orders[0], command, "task") or members or _merge(command)
    if command.gpus > 1 and not command.order.workload.pipeline:
        return Objection("impossible", f"a profile run on {command.gpus} GPUs: only pipelines have more")
    return _pipeline(command.order, command, "profile run") or members


def _pipeline(order: JobOrder, command: TaskAssigned | ProfileOrdered, name: str) -> Objection | None:
    gpus = members_of(command).world
    if not order.workload.pipeline or gpus % STAGES_PER_PIPELINE == 0:
        return None
    return Objection(
        "impossible",
        f"{order.job_id} is pipeline-parallel: a {name} of it has a multiple of {STAGES_PER_PIPELINE} GPUs, "
        f"not {gpus}",
    )


def _merge(command: TaskAssigned) -> Objection | None:
    jobs = [order.job_id for order in command.orders]
    if len(set(jobs)) < len(jobs):
        return Objection("impossible", f"{jobs[0]} is merged with itself")
    for order in command.orders if command.mode != "normal" else ():
        if order.workload.pipeline:
            return Objection("impossible", f"{order.job_id} is pipeline-parallel, and is merged")
        if not order.workload.sharing:
            return Objection("impossible", f"{order.job_id} does not share, and is merged")
    return None
