"""Figures of an elastic zone in words."""

from collections.abc import Iterator

from infra.figures.elastic.figures import ElasticFigures
from infra.figures.elastic.jobs import ElasticTimeline
from infra.figures.elastic.results import ElasticResults
from infra.figures.nodes import NodeState
from infra.text import counted, lasting
from infra.views.figures import times
from infra.views.policy import FiguresView
from schemas.elastic.commands import Member
from schemas.elastic.outcomes import JobResized
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticWorkload

_SHOWN_SERVERS = 3


class ElasticFiguresView(FiguresView[ElasticFigures, ElasticTimeline]):
    """See `FiguresView`."""

    def headline(self, figures: ElasticFigures) -> str:
        """Return running and waiting jobs, and those that the next reclaim would preempt."""
        if not figures.submitted:
            return ""
        parts = [f"{figures.running} running on {figures.workers} workers", f"{figures.waiting} queued"]
        parts.append(f"{figures.used_gpus} of {figures.gpus} GPUs in use")
        if figures.staffed is not None and figures.staffed.on_loan:
            parts.append(_risk(figures.staffed))
        return ", ".join(parts)

    def rows(self, figures: ElasticFigures) -> Iterator[tuple[str, str]]:
        """Yield the state while jobs are live, and the results."""
        if figures.running or figures.waiting:
            yield "jobs with workers, and without", f"{figures.running}, {figures.waiting}"
            yield "workers", str(figures.workers)
            yield "GPUs in use", f"{figures.used_gpus} of {figures.gpus}"
        yield from result_rows(figures.results())

    def job_cells(self, figures: ElasticFigures, job: ElasticTimeline) -> dict[str, str]:
        """Return its workers and their servers, its waiting time, and whether a reclaim would preempt it."""
        if job.payment_micros is None:
            return {}
        cells = {"waited": lasting(job.waited_s(figures.now_s))}
        if not job.is_over:
            cells["workers"] = f"{0 if job.size is None else job.size.workers}{_range(job.workload)}"
        if job.size is not None and job.size.workers:
            cells["servers"] = servers_of(job.size.servers)
            cells["pool"] = pools_of(job.size)
            if risk := _effect(figures.staffed, job.job_id):
                cells["next reclaim"] = risk
        return cells

    def node_cells(self, figures: ElasticFigures, node: NodeState) -> dict[str, str]:
        """Return the number of workers on the node."""
        workers = figures.workers_on[node.node]
        return {"workers": str(workers)} if workers else {}


def result_rows(results: ElasticResults) -> Iterator[tuple[str, str]]:
    """Yield names and texts of results."""
    yield "queuing time", times(results.queuing)
    yield "job completion time", times(results.jct)
    yield "GPU usage: training", f"{results.training_usage:.1%}"
    yield "GPU usage: training and inference", f"{results.overall_usage:.1%}"
    yield "GPU usage: servers on loan", f"{results.on_loan_usage:.1%}"
    yield "preemptions, and per job", f"{results.preemptions}, {results.preemption_ratio:.2%}"
    yield "changes of running jobs' workers", str(results.resizes)
    yield (
        "reclaims, servers, and those without a preemption",
        f"{results.reclaims}, {results.reclaimed_servers}, {results.flexible_servers}",
    )
    yield "collateral damage", f"{results.collateral_damage:.1%}"
    yield "overdue reclaims", str(results.overdue_reclaims)
    if results.profiled:
        yield "error of running times, median", f"{results.running_time_error_pct:.1f} %"
        cost = f"{results.profiled}, {results.profile_cost_pct:.1f} %"
        yield "runs to measure a job, and GPU time of one over the mean job's", cost


def servers_of(members: tuple[Member, ...]) -> str:
    """Return a text about the servers of workers, the first few by name."""
    shown = ", ".join(f"{member.node} x{member.workers}" for member in members[:_SHOWN_SERVERS])
    more = len(members) - _SHOWN_SERVERS
    return f"{shown} and {more} more servers" if more > 0 else shown


def pools_of(size: JobResized) -> str:
    """Return the names of the pools of a job's workers."""
    return " + ".join(dict.fromkeys(pool for pool in (size.pool, size.flexible_pool) if pool is not None))


def _range(workload: ElasticWorkload | None) -> str:
    if workload is None:
        return ""
    if workload.min_workers == workload.max_workers:
        return f" of {workload.max_workers}"
    return f" of {workload.min_workers}-{workload.max_workers}"


def _risk(staffed: ZoneStaffed) -> str:
    if not staffed.next_reclaims:
        return f"all {staffed.on_loan} servers on loan can go back without a preemption"
    first = staffed.next_reclaims[0]
    return (
        f"{staffed.harmless_returns} of {staffed.on_loan} servers on loan can go back without a preemption, "
        f"one more preempts {', '.join(first.preempts)}"
    )


def _effect(staffed: ZoneStaffed | None, job_id: str) -> str:
    for effect in () if staffed is None else staffed.next_reclaims:
        if job_id in effect.preempts:
            return f"preempted if {counted(effect.servers, 'server')} must go"
    return ""
