"""Jobs for simulations of the round-robin policy."""

import random
from typing import Annotated

from pydantic import Field

from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.jobs import JobSubmitted
from tests.round_robin.kind import CountWorkload, QueueTerms


class CountOptions(DrawingOptions):
    """Counts of drawn jobs."""

    largest_goal: Annotated[int, Field(ge=1, le=10**6)] = 30


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw jobs within ten minutes, ten unless the options set another number."""
    options = drawing.options_as(CountOptions)
    rng = random.Random(f"{drawing.seed}/counting")
    span_s = 600.0 if drawing.span_s is None else drawing.span_s
    jobs = 10 if drawing.jobs is None else drawing.jobs
    return [
        TimedEvent(
            drawing.cell.epoch_s + time_s,
            JobSubmitted(
                cell=drawing.cell.cell,
                job_id=f"drawn-{number}",
                user="ann",
                zone=rng.choice(drawing.zones).id,
                workload=CountWorkload(goal=rng.randint(1, options.largest_goal)),
                terms=QueueTerms(),
            ),
        )
        for number, time_s in enumerate(sorted(rng.uniform(0, span_s) for _ in range(jobs)))
    ]
