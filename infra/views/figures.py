"""Figures of a log in words: those of a cell, and by their policies' views those of zones, jobs and nodes."""

from collections.abc import Iterator
from typing import Any

from infra.figures.board import Board
from infra.figures.distribution import Distribution
from infra.figures.jobs import JobTimeline
from infra.figures.nodes import NodeState
from infra.figures.summary import Summary
from infra.figures.zone import ZoneFigures
from infra.text import units
from infra.views.policy import FiguresView, view_of


def headline(figures: ZoneFigures[Any]) -> str:
    """Return the state of a zone in a few words, for the line above a watcher's tables."""
    return _view(figures).headline(figures)


def zone_rows(figures: ZoneFigures[Any]) -> Iterator[tuple[str, str]]:
    """Yield each figure of a zone with its name."""
    yield from _view(figures).rows(figures)


def job_cells(board: Board, job: JobTimeline) -> dict[str, str]:
    """Return the figures of a job by its zone, by the name of the column."""
    figures = board.zones.get(job.zone)
    if figures is None or not isinstance(job, figures.JOB):
        return {}
    return dict(_view(figures).job_cells(figures, job))


def node_cells(board: Board, node: NodeState) -> dict[str, str]:
    """Return the figures of a node by its zone, by the name of the column."""
    figures = board.zones.get(node.zone)
    return {} if figures is None else dict(_view(figures).node_cells(figures, node))


def times(distribution: Distribution) -> str:
    """Return the mean and the percentiles of times."""
    parts = ", ".join(f"{name} %: {value:,.0f} s" for name, value in distribution.percentiles_s.items())
    return f"mean {distribution.mean_s:,.0f} s; {parts}"


def summary_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each figure of a cell with its name."""
    if summary.faults:
        yield "events that faulted", str(summary.faults)
    yield "jobs", str(summary.jobs)
    yield "admitted", str(summary.admitted)
    for reason, count in summary.rejected.items():
        yield f"rejected: {reason}", str(count)
    yield "completed", str(summary.completed)
    yield "refunded", str(summary.refunded)
    yield "withdrawn", str(summary.withdrawn)
    yield "nodes lost", str(summary.nodes_lost)
    if summary.servers_lent:
        yield "servers lent", str(summary.servers_lent)
    for status, count in summary.reclaims.items():
        yield f"reclaims: {status}", str(count)
    yield "revenue", units(summary.revenue_micros)
    if summary.utilisation is not None:
        yield "utilisation of all nodes' time", f"{summary.utilisation:.1%}"
    if summary.solves:
        yield "solves, and seconds of solvers", f"{summary.solves}, {summary.solve_s:.1f} s"
        yield "solves that found nothing", str(summary.solves_without_solution)


def _view(figures: ZoneFigures[Any]) -> FiguresView[Any, Any]:
    return next((view.figures for view in view_of(figures.policy)), FiguresView())
