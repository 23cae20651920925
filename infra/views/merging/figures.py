"""Figures of a merging zone in words."""

from collections.abc import Iterator

from infra.figures.merging.evaluation import MergingEvaluation
from infra.figures.merging.figures import MergingFigures
from infra.figures.merging.jobs import TuningTimeline
from infra.figures.nodes import NodeState
from infra.text import counted, first_of, lasting
from infra.views.figures import times
from infra.views.policy import FiguresView
from schemas.merging.commands import TaskMember, TransferMode
from schemas.merging.outcomes import TaskChanged

_SHOWN_MERGES = 3
_SHOWN_NODES = 3
_SIGNS: dict[TransferMode, str] = {"normal": "", "temporal": " -> ", "spatial": " || "}


class MergingFiguresView(FiguresView[MergingFigures, TuningTimeline]):
    """See `FiguresView`."""

    def headline(self, figures: MergingFigures) -> str:
        """Return running jobs and merges, and the time that merges saved."""
        if not figures.submitted:
            return ""
        parts = [
            f"{figures.profiling} profiling, {figures.running} running, {figures.waiting} waiting",
            f"{figures.used_gpus} of {figures.gpus} GPUs in use",
        ]
        merged = [f"{chain(task)} on {counted(task.gpus, 'GPU')}" for task in figures.merged_tasks()]
        if merged:
            parts.append(f"merged now: {first_of(merged, _SHOWN_MERGES)}")
        if figures.evaluated:
            over = f"{figures.evaluated['finished']} finished, {figures.undone} undone"
            parts += [f"merges: {over}, {worth(figures.saved_s)}"]
        return "; ".join(parts)

    def rows(self, figures: MergingFigures) -> Iterator[tuple[str, str]]:
        """Yield the state while jobs are live, and the measures."""
        if any(figures.admitted()):
            jobs = f"{figures.profiling}, {figures.running}, {figures.waiting}"
            yield "jobs profiling, running and waiting", jobs
            yield "GPUs in use", f"{figures.used_gpus} of {figures.gpus}"
            merged = [len(figures.merged_tasks(mode)) for mode in ("temporal", "spatial")]
            yield "tasks merged now: temporal, spatial", f"{merged[0]}, {merged[1]}"
        yield "merged jobs that were done in their merge", str(figures.evaluated["finished"])
        yield "jobs whose merge was undone", str(figures.undone)
        yield "worth of merges", worth(figures.saved_s)
        yield from evaluation_rows(figures.evaluation())

    def job_cells(self, figures: MergingFigures, job: TuningTimeline) -> dict[str, str]:
        """Return its GPUs and their nodes, its merge, and its waiting time."""
        if job.payment_micros is None:
            return {}
        cells = {"waited": lasting(job.waited_s(figures.now_s))}
        if job.profile_run is not None:
            cells["GPUs"] = f"{job.profile_run.gpus} on {job.profile_run.node}, profiling"
        if job.task is not None:
            if job.is_training:
                cells["GPUs"] = f"{job.task.gpus} on {places(job.task.members)}"
            if len(job.task.job_ids) > 1:
                cells["merge"] = chain(job.task)
        return cells

    def node_cells(self, figures: MergingFigures, node: NodeState) -> dict[str, str]:
        """Return the number of the node's GPUs in use by tasks and profile runs."""
        used = figures.used_gpus_of(node.node)
        return {"GPUs": str(used)} if used else {}


def evaluation_rows(evaluation: MergingEvaluation) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the measures."""
    yield "job completion time", times(evaluation.jct)
    yield "makespan", f"{evaluation.makespan_s:,.0f} s"
    yield "jobs merged: temporal, spatial", f"{evaluation.temporal_share:.1%}, {evaluation.spatial_share:.1%}"
    yield "merges undone", str(evaluation.merges_undone)
    yield "preemptions", str(evaluation.preemptions)
    gain = evaluation.gain
    if gain.mape_pct is not None and gain.sign_pct is not None:
        errors = f"{gain.mape_pct:.1f} %, {gain.sign_pct:.1f} %"
        yield "forecast gains: error of the accuracy, right sign", f"{errors} of {gain.pairs}"
    for name, part in (("alone", evaluation.iterations_alone), ("merged", evaluation.iterations_merged)):
        if part.mean_ape_pct is not None and part.max_ape_pct is not None:
            errors = f"mean {part.mean_ape_pct:.1f} %, worst {part.max_ape_pct:.1f} % of {part.jobs}"
            yield f"forecast iterations of jobs {name}: error", errors
    if (fair := evaluation.fairness) is not None:
        yield (
            "finish-time fairness: mean, worst, share above 1",
            f"{fair.mean:.2f}, {fair.worst:.2f}, {fair.hurt_share:.1%}",
        )


def chain(task: TaskChanged) -> str:
    """Return the task's jobs: `a -> b` if b starts from a's weights, `a || b` if both are in one run."""
    return _SIGNS[task.mode].join(task.job_ids)


def places(members: tuple[TaskMember, ...]) -> str:
    """Return a text about the nodes of GPUs, the first few by name."""
    shown = ", ".join(f"{member.node} x{member.gpus}" for member in members[:_SHOWN_NODES])
    more = len(members) - _SHOWN_NODES
    return f"{shown} and {counted(more, 'more node')}" if more > 0 else shown


def worth(saved_s: float) -> str:
    """Return a text about the time with one GPU that merges saved or cost."""
    verb = "saved" if saved_s >= 0 else "cost"
    return f"{verb} {lasting(abs(saved_s))} of one GPU"
