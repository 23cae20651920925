"""Logs of small merging zones, and what views make of them."""

from functools import cache

from infra.figures.board import Board
from infra.simulation.simulator import SimulatedRun
from infra.views.story import Story
from infra.views.words import describe, happening
from schemas.clock import ClockTicked
from schemas.merging.estimates import MergeMode
from tests.infra.simulation.merging.small import CELL, SmallTruth, merging_cell, simulated, submit

JOBS = ((1.0, submit("zero")), (20.0, submit("one")), (21.0, submit("two")))
"""Jobs of one task, for one GPU. "zero" has it from 10 s to 610 s; the others are merged then."""


@cache
def merged_run(mode: MergeMode = "temporal", helps: int = 3) -> SimulatedRun:
    """Two jobs are merged, and begin so many epochs ahead for it."""
    return simulated(merging_cell(modes=(mode,)), JOBS, SmallTruth({("a", "a"): helps}))


def lines_about(run: SimulatedRun, job_id: str) -> list[str]:
    """Return the lines of `explain` about a job."""
    story = Story(job_id)
    for entry in run.ledger:
        story.fold_event(entry.offset, entry.envelope)
    for decision in run.decisions:
        story.fold_decision(decision)
    return [line for chapter in story.chapters for line in describe(chapter.record)]


def watched_lines(run: SimulatedRun) -> list[str]:
    """Return the changes that a watcher prints."""
    return [line for decision in run.decisions if (line := happening(decision)) is not None]


def board_at(run: SimulatedRun, time_s: float) -> Board:
    """Return the watcher's board at this time of the cell's clock."""
    later = (
        entry.offset
        for entry in run.ledger
        if isinstance(tick := entry.envelope.event, ClockTicked) and tick.time_s > time_s
    )
    end = next(later, len(run.ledger))
    return Board.of(
        CELL,
        (entry for entry in run.ledger if entry.offset < end),
        (decision for decision in run.decisions if decision.place[0] < end),
    )
