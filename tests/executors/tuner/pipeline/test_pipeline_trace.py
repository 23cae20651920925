"""What is read from the traces of all ranks."""

import pytest
import torch

from executors.tuner.pipeline.trace import Kind, Span, Trace, training_gap


def spans(rank: int, job_id: str, *parts: tuple[Kind, float, float], step: int = 0) -> list[Span]:
    return [Span(rank, job_id, step, kind, start_s, end_s) for kind, start_s, end_s in parts]


# Two ranks. A runs 0 -> 1, so rank 1 ends its backward first.
OLD = [
    *spans(0, "a", ("forward", 8.0, 9.0), ("backward", 10.0, 11.0), step=6),
    *spans(0, "a", ("forward", 20.0, 21.0), ("backward", 23.0, 25.0), ("store", 26.0, 27.0), step=7),
    *spans(1, "a", ("forward", 21.0, 22.0), ("backward", 22.0, 23.0), ("store", 26.0, 27.0), step=7),
]


def test_early_reverse_task_has_negative_gap() -> None:
    new = [
        *spans(1, "b", ("load", 23.0, 23.5), ("forward", 23.5, 24.5), ("backward", 28.0, 29.0)),
        *spans(0, "b", ("load", 25.0, 25.5), ("forward", 25.5, 26.5), ("backward", 26.5, 28.0)),
    ]
    gap = training_gap(OLD + new, "a", "b")
    assert gap.between_s == -1.5
    assert gap.idle_s == (0.5, 0.5)
    assert gap.mean_idle_s == 0.5
    assert gap.last_and_first_s == 9.0


def test_a_forward_task_leaves_the_last_rank_idle() -> None:
    new = [
        *spans(0, "b", ("forward", 25.5, 26.5), ("backward", 28.0, 29.0)),
        *spans(1, "b", ("forward", 26.5, 27.0), ("backward", 27.0, 28.0)),
        *spans(0, "b", ("forward", 30.0, 31.0), ("backward", 31.0, 32.0), step=1),
    ]
    gap = training_gap(OLD + new, "a", "b")
    assert gap.between_s == 0.5
    assert gap.idle_s == (0.5, 3.5)
    assert gap.last_and_first_s == 9.0


def test_a_trace_without_the_next_task_is_refused() -> None:
    with pytest.raises(ValueError, match="no step of b"):
        training_gap(OLD, "a", "b")


def test_a_trace_that_is_switched_off_keeps_nothing() -> None:
    trace = Trace(0, torch.device("cpu"), enabled=False)
    with trace.span("forward", "a", 0):
        pass
    assert trace.spans == []
