"""Trace of the ranks' work, and the time that is lost between two tasks."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["forward", "backward", "update", "store", "load"]


@dataclass(frozen=True)
class Span:
    """One action of a rank for a task; times in seconds on a clock that all ranks share."""

    rank: int
    job_id: str
    step: int
    """Number of steps before; work after the last step has its number."""
    kind: Kind
    start_s: float
    end_s: float


class Trace:
    """Spans of one rank.

    The default clock is CLOCK_MONOTONIC, which all processes of a Linux machine share. On CUDA, each span of
    computation waits for the device at its end; without that it would show only the submission of the work.
    Pass ``enabled=False`` to train without these waits.
    """

    def __init__(
        self,
        rank: int,
        device: torch.device,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spans: list[Span] = []
        self._rank = rank
        self._device = device
        self._enabled = enabled
        self._clock = clock

    @contextmanager
    def span(self, kind: Kind, job_id: str, step: int) -> Iterator[None]:
        """Record the duration of the block."""
        if not self._enabled:
            yield
            return
        start_s = self._clock()
        yield
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.spans.append(Span(self._rank, job_id, step, kind, start_s, self._clock()))


@dataclass(frozen=True)
class TrainingGap:
    """Time that training lost in a switch between two tasks.

    Attributes:
        between_s: from the end of the last backward of the old task on any rank to the start of the first
            forward of the new one on any rank. Negative if the new task began before the old one ended.
        idle_s: for each rank, from its own last backward of the old task to its own first forward of the new
            one.
        last_and_first_s: from the first forward of the old task's last step to the last backward of the new
            task's first step.
    """

    between_s: float
    idle_s: tuple[float, ...]
    last_and_first_s: float

    @property
    def mean_idle_s(self) -> float:
        """Mean over the ranks (s)."""
        return sum(self.idle_s) / len(self.idle_s)


def training_gap(spans: Iterable[Span], old: str, new: str) -> TrainingGap:
    """Find the gap between the last step of one task and the first of another, from the spans of all ranks.

    Args:
        spans: spans of all ranks, in any order; the tasks may have other steps as well.
        old: the job that trained before.
        new: the job that trained after it.

    Raises:
        ValueError: a task has no forward or backward among the spans.
    """
    computed = [span for span in spans if span.kind in ("forward", "backward")]
    of_old = [span for span in computed if span.job_id == old]
    of_new = [span for span in computed if span.job_id == new]
    if not of_old or not of_new:
        raise ValueError(f"the trace has no step of {old if not of_old else new}")
    last_step = max(span.step for span in of_old)
    first_step = min(span.step for span in of_new)
    last = [span for span in of_old if span.step == last_step]
    first = [span for span in of_new if span.step == first_step]
    ranks = sorted({span.rank for span in last} & {span.rank for span in first})
    idle_s = tuple(
        min(span.start_s for span in first if span.rank == rank)
        - max(span.end_s for span in last if span.rank == rank)
        for rank in ranks
    )
    return TrainingGap(
        between_s=min(span.start_s for span in first) - max(span.end_s for span in last),
        idle_s=idle_s,
        last_and_first_s=max(span.end_s for span in first) - min(span.start_s for span in last),
    )
