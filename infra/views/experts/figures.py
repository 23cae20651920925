"""Figures of a zone of mixture-of-experts models in words."""

from collections.abc import Iterator

from infra.figures.experts.figures import ExpertsFigures
from infra.figures.experts.jobs import MoeTimeline
from infra.figures.nodes import NodeState
from infra.text import counted, first_of
from infra.views.figures import times
from infra.views.policy import FiguresView
from schemas.experts.commands import RankMember

_SHOWN_NODES = 3


class ExpertsFiguresView(FiguresView[ExpertsFigures, MoeTimeline]):
    """See `FiguresView`."""

    def headline(self, figures: ExpertsFigures) -> str:
        """Return running and waiting jobs, and the load of the busiest devices of services."""
        if not figures.submitted:
            return ""
        parts = [
            f"{figures.running} running on {counted(figures.ranks, 'rank')}",
            f"{figures.waiting} queued",
        ]
        jobs = (job for job in figures.admitted() if job.members)
        loads = [load for job in jobs if (load := job.busiest_load) is not None]
        if loads:
            parts.append(f"busiest device {sum(loads) / len(loads):.2f} of the mean")
        return ", ".join(parts)

    def rows(self, figures: ExpertsFigures) -> Iterator[tuple[str, str]]:
        """Yield the state while jobs are live, and the results."""
        if figures.running or figures.waiting:
            yield "jobs with ranks, and without", f"{figures.running}, {figures.waiting}"
            yield "devices with ranks", f"{figures.ranks} of {figures.gpus}"
        yield "ranks lost with nodes", str(figures.changes["node_lost"] + figures.changes["preempted"])
        yield "jobs that gave way", str(figures.changes["gave_way"])
        yield "job completion time", times(figures.jct)
        if figures.batch_s is not None:
            yield "batch of a service, mean", f"{1_000 * figures.batch_s:,.0f} ms"
        placements = (f"{count} {reason.replace('_', ' ')}" for reason, count in figures.placements.items())
        yield "placements", ", ".join(placements)
        before, after = figures.mean_of_shifts("load_before"), figures.mean_of_shifts("load")
        if before is not None and after is not None:
            yield "busiest device where popularity shifted", f"{before:.2f} -> {after:.2f} of the mean"

    def job_cells(self, figures: ExpertsFigures, job: MoeTimeline) -> dict[str, str]:  # noqa: ARG002
        """Return its ranks, and its present placement."""
        if job.state != "admitted":
            return {}
        cells = {"ranks": placed_on(job.members) if job.members else f"waits for {job.ranks}"}
        if job.busiest_load is not None:
            cells["placement"] = f"{job.revision}, busiest {job.busiest_load:.2f}"
        return cells

    def node_cells(self, figures: ExpertsFigures, node: NodeState) -> dict[str, str]:
        """Return the number of ranks on the node."""
        members = (member for job in figures.admitted() for member in job.members)
        ranks = sum(member.ranks for member in members if member.node == node.node)
        return {"ranks": str(ranks)} if ranks else {}


def placed_on(members: tuple[RankMember, ...]) -> str:
    """Return a text about the number of a job's ranks and their nodes."""
    total = counted(sum(member.ranks for member in members), "rank")
    nodes = [f"{member.node} x{member.ranks}" for member in members]
    return f"{total} on {first_of(nodes, _SHOWN_NODES)}"
