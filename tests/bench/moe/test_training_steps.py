"""Durations of a measured step are computed from the times that its ranks recorded."""

import pytest

from bench.moe.training import RankStep, merged, step_times
from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord


def exchange(rank: int, label: str, submitted_s: float, issued_s: float, completed_s: float) -> MicroOpRecord:
    return MicroOpRecord(rank, CollectiveKind.ALL_TO_ALL, label, 1, submitted_s, issued_s, completed_s)


def average(rank: int, submitted_s: float, issued_s: float, completed_s: float) -> MicroOpRecord:
    return MicroOpRecord(rank, CollectiveKind.ALLREDUCE, "bucket 0", 1, submitted_s, issued_s, completed_s)


def step(*records: MicroOpRecord) -> RankStep:
    return RankStep(0.0, 10.0, 20.0, list(records))


def test_all_to_all_lasts_from_last_start() -> None:
    ranks = [
        step(exchange(0, "layer 0 backward dispatch", 10, 10, 13)),
        step(exchange(1, "layer 0 backward dispatch", 12, 12, 14)),
    ]

    assert step_times(ranks, group_size=2).all_to_all_backward_s == pytest.approx(2.0)


def test_the_wait_for_its_turn_counts() -> None:
    ranks = [step(exchange(0, "layer 0 forward dispatch", 1, 4, 6))]

    assert step_times(ranks, group_size=1).all_to_all_forward_s == pytest.approx(5.0)


def test_concurrent_micro_ops_count_once() -> None:
    chunks = (
        exchange(0, "layer 0 forward dispatch", 1, 1, 3),
        exchange(0, "layer 0 forward dispatch", 1, 3, 5),
    )

    assert step_times([step(*chunks)], group_size=1).all_to_all_forward_s == pytest.approx(4.0)


def test_groups_that_exchange_tokens_among_themselves_are_averaged() -> None:
    ranks = [
        step(exchange(rank, "layer 0 forward dispatch", 0, 0, lasts_s))
        for rank, lasts_s in enumerate((1, 1, 3, 3))
    ]

    assert step_times(ranks, group_size=2).all_to_all_forward_s == pytest.approx(2.0)


def test_exchange_of_counts_has_no_tokens() -> None:
    ranks = [step(exchange(0, "layer 0 counts", 0, 0, 5))]

    times = step_times(ranks, group_size=1)
    assert times.all_to_all_forward_s == times.all_to_all_backward_s == 0.0


def test_allreduces_span_from_first_submission() -> None:
    times = step_times([step(average(0, 10, 12, 13), average(0, 10, 15, 17))], group_size=1)

    assert times.allreduce_s == pytest.approx(3.0)
    assert times.allreduce_span_s == pytest.approx(7.0)


def test_intervals_that_touch_are_merged() -> None:
    assert merged([(4.0, 5.0), (0.0, 1.0), (1.0, 2.0), (1.5, 1.8)]) == [(0.0, 2.0), (4.0, 5.0)]
