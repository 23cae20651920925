"""Spans of the work of a pipeline's ranks, and the time that is lost between two tasks."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from executors.tuner.pipeline.stage_part import StagePart, StagePasses
from executors.tuner.training import InTraining


@dataclass(frozen=True)
class Span:
    """One action of a rank for a task; times in seconds on CLOCK_MONOTONIC, which all processes share."""

    rank: int
    job_id: str
    kind: str
    start_s: float
    end_s: float


@contextmanager
def recorded(
    rank: int, before: Callable[[str, str], None] = lambda _kind, _job_id: None
) -> Iterator[list[Span]]:
    """Record the passes of training of this process, and loads and stores of parts, within the block.

    Args:
        before: called with kind and job before each action.
    """
    spans: list[Span] = []
    originals = StagePasses.forward, StagePasses.backward, StagePart.__init__, StagePart.to_host
    forward, backward, load, store = originals

    def noted(kind: str, job_id: str, action: Callable[[], Any]) -> Any:
        if before is not None:
            before(kind, job_id)
        start_s = time.monotonic()
        result = action()
        spans.append(Span(rank, job_id, kind, start_s, time.monotonic()))
        return result

    def run_forward(self: StagePasses, *arguments: Any) -> Any:
        adapter = arguments[-1]
        if not isinstance(adapter, InTraining):
            return forward(self, *arguments)
        return noted("forward", adapter.adapter.task.job_id, lambda: forward(self, *arguments))

    def run_backward(self: StagePasses, *arguments: Any) -> Any:
        return noted("backward", arguments[-1].adapter.task.job_id, lambda: backward(self, *arguments))

    def run_load(self: StagePart, *arguments: Any) -> None:
        noted("load", arguments[0].task.job_id, lambda: load(self, *arguments))

    def run_store(self: StagePart) -> Any:
        return noted("store", self.adapter.task.job_id, lambda: store(self))

    patched = run_forward, run_backward, run_load, run_store
    StagePasses.forward, StagePasses.backward, StagePart.__init__, StagePart.to_host = patched
    try:
        yield spans
    finally:
        StagePasses.forward, StagePasses.backward, StagePart.__init__, StagePart.to_host = originals


def gap_s(spans: Iterable[Span], old: str, new: str) -> tuple[float, list[float]]:
    """Time from the last backward of one task on any rank to the first forward of the next on any; and for
    each rank, from its own last backward to its own first forward."""
    ended_s: dict[int, float] = {}
    begun_s: dict[int, float] = {}
    for span in spans:
        if (span.job_id, span.kind) == (old, "backward"):
            ended_s[span.rank] = max(span.end_s, ended_s.get(span.rank, span.end_s))
        elif (span.job_id, span.kind) == (new, "forward"):
            begun_s[span.rank] = min(span.start_s, begun_s.get(span.rank, span.start_s))
    idle_s = [begun_s[rank] - ended_s[rank] for rank in sorted(ended_s)]
    return min(begun_s.values()) - max(ended_s.values()), idle_s
