"""The invariants of a merging zone after every event."""

from collections import Counter
from collections.abc import Iterator

from streams.policies.merging.tasks import Tasks


def broken_invariants(tasks: Tasks) -> Iterator[str]:
    """Yield a line for each broken invariant of tasks, profile runs and GPUs."""
    used: Counter[str] = Counter()
    for task in tasks.all.values():
        used.update(task.members)
        if not task.job_ids or not task.members:
            yield f"task {task.task_id} has jobs {task.job_ids} and GPUs {task.members}"
        for job_id in task.job_ids:
            if job_id not in tasks.jobs or tasks.jobs[job_id].task != task.task_id:
                yield f"task {task.task_id} has job {job_id}, which is not in it"
    for job in tasks.jobs.values():
        used.update(job.profiled_on)
        if job.task is not None and job.task not in tasks.all:
            yield f"job {job.job_id} is in task {job.task}, which is over"
        if (job.stage == "profiling") != bool(job.profiled_on):
            yield f"job {job.job_id} is {job.stage}, with a profile run on {job.profiled_on}"
        if job.is_ending and (job.task is not None or job.profiled_on):
            yield f"job {job.job_id} is ending, and has GPUs"
        part_of = tasks.task_of(job)
        if part_of is not None and len(part_of.job_ids) == 2 and not job.workload.sharing:
            yield f"job {job.job_id} does not share, and is merged"
    unprofiled = [job.job_id for job in tasks.jobs.values() if job.stage != "ready"]
    if [job.job_id for job in tasks.unprofiled()] != unprofiled:
        yield f"the list of jobs without a profile differs from {unprofiled}"
    if tasks.waiting != sum(job.task is None for job in tasks.jobs.values()):
        yield f"the number of waiting jobs, {tasks.waiting}, is not the number of jobs without a task"
    for node, count in used.items():
        if count > tasks.gpus.nodes.get(node, 0):
            yield f"node {node} has {tasks.gpus.nodes.get(node, 0)} GPUs, but {count} are held"
    if used.total() != tasks.gpus.used:
        yield f"{tasks.gpus.used} GPUs are counted as held, but tasks and profile runs hold {used.total()}"
