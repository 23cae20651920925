"""Uneven shares give the parameters of an even split; too little memory gives smaller micro-batches."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from executors.elastic.rank import DataParallelTraining
from executors.elastic.settings import ElasticSettings
from executors.elastic.shares import BatchShares
from executors.gang.faults import is_permanent_anywhere
from executors.gang.group import ProcessGroup
from solvers.elastic.batch_shares import batch_shares, step_time
from tests.support.elastic_nodes import workload
from tests.support.examples import examples
from tests.support.rank_threads import Board, RankThreads, ThreadGroup

BATCH = 8
STEPS = 3
WORK = workload(10**6)

Start = Callable[..., RankThreads]


@pytest.fixture
def start(elastic_settings: ElasticSettings, tmp_path: Path) -> Start:
    def ranks(world: int, **hyperparameters: object) -> RankThreads:
        work = workload(10**6, hyperparameters=hyperparameters)
        return RankThreads(elastic_settings.model_root.parent, tmp_path, work, world)

    return ranks


def shares_of(ranks: RankThreads) -> list[BatchShares]:
    return [training.shares for training in ranks.trainings]


@st.composite
def divisions(draw: st.DrawFn) -> list[int]:
    """Shares of two to four ranks, some of one sequence or none."""
    cuts = sorted(draw(st.lists(st.integers(0, BATCH), min_size=1, max_size=3)))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, BATCH], strict=True)]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=divisions(), micro=st.sampled_from([1, 3, 8]))
def test_uneven_shares_give_same_parameters(start: Start, counts: list[int], micro: int) -> None:
    alone, ranks = start(1), start(len(counts), micro_batch_size=micro)
    alone.begin()
    ranks.begin()
    for _ in range(STEPS):
        for shares in shares_of(ranks):  # in place of those that were decided after the last step
            shares.counts = counts
        alone.step()
        ranks.step()
    for rank in range(len(counts)):
        torch.testing.assert_close(ranks.parameters(rank), alone.parameters(), rtol=1e-4, atol=1e-5)


def test_ranks_with_other_shares_differ_in_their_terms(start: Start) -> None:
    ranks = start(3)
    ranks.begin()
    assert len({training.step_terms() for training in ranks.trainings}) == 1
    shares_of(ranks)[1].counts = [3, 2, 3][::-1] if shares_of(ranks)[0].counts == [3, 2, 3] else [3, 2, 3]
    assert len({training.step_terms() for training in ranks.trainings}) == 2


def test_known_speeds_decide_first_shares_after_checkpoint(start: Start) -> None:
    before = start(2)
    for training, sequence_ns in zip(before.trainings, (10**6, 3 * 10**6), strict=True):
        with training.shares.measured(0, torch.device("cpu")):
            pass
        training.shares.note_speed(sequence_ns)
    before.begin()
    assert [shares.counts for shares in shares_of(before)] == [[6, 2], [6, 2]]
    after = start(2)
    after.trainings[0].recall(before.trainings[0].notes())
    after.begin()
    assert [shares.counts for shares in shares_of(after)] == [[6, 2], [6, 2]]


def test_newcomer_begins_with_one_sequence(start: Start) -> None:
    ranks = start(2)
    shares_of(ranks)[0].note_speed(10**6)
    ranks.begin()
    assert [shares.counts for shares in shares_of(ranks)] == [[7, 1], [7, 1]]


def steps_ns(costs: list[int], known: list[bool]) -> list[int]:
    """Return the times of a job's steps, for workers that take so long for a sequence (ns)."""
    world = len(costs)
    board = Board(world)

    def work(rank: int) -> list[list[int]]:
        shares, group = BatchShares(f"n{rank}", "cpu", 32), cast(ProcessGroup, ThreadGroup(board, rank))
        if known[rank]:
            shares.note_speed(costs[rank])
        shares.begin(group, lambda _: 32)
        counts = []
        for _ in range(400):
            counts.append(shares.counts)
            if shares.counts[rank]:
                shares.note_speed(costs[rank])
            shares.end_step(group)
        return counts

    with ThreadPoolExecutor(world) as threads:
        (steps, *_) = threads.map(work, range(world))
    return [max(count * cost for count, cost in zip(counts, costs, strict=True)) for counts in steps]


@settings(max_examples=examples(15), deadline=None)
@given(
    fast=st.integers(1, 3),
    slowness=st.lists(st.floats(1, 5_000), min_size=1, max_size=3),
)
def test_slower_workers_never_slow_a_job(fast: int, slowness: list[float]) -> None:
    costs = [10**6] * fast + [int(10**6 * each) for each in slowness]
    alone = step_time(batch_shares(32, costs[:fast]), costs[:fast])
    times_ns = steps_ns(costs, [True] * fast + [False] * len(slowness))
    # One sequence on each, once, and what is spent on measuring them again.
    assert times_ns[0] <= max(alone, *costs)
    assert sum(times_ns[1:]) <= 1.01 * alone * len(times_ns[1:])
    assert times_ns[-1] <= alone


def limit(training: DataParallelTraining, rows: int, error: Exception) -> None:
    """Let the device have memory for so many sequences at a time."""

    def refuse(_module: nn.Module, _args: Any, fields: dict[str, Any]) -> None:
        if len(fields["input_ids"]) > rows:
            raise error

    training.model.module.register_forward_pre_hook(refuse, with_kwargs=True)


def allocator_error() -> Exception:
    """Return the error of torch for a CPU that refuses memory."""
    try:
        torch.empty(2**60, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MemoryError(), allocator_error()])
def test_too_little_memory_halves_micro_batches(start: Start, error: Exception) -> None:
    alone, ranks = start(1, micro_batch_size=8), start(2, micro_batch_size=8)
    for training in ranks.trainings:
        limit(training, 1, error)
    for each in (alone, ranks):
        each.begin()
        each.run(STEPS)
    torch.testing.assert_close(ranks.parameters(), alone.parameters(), rtol=1e-4, atol=1e-5)
    assert [shares.micro_batch for shares in shares_of(ranks)] == [1, 1]
    later = start(2, micro_batch_size=8)
    later.trainings[0].recall(ranks.trainings[0].notes())
    later.begin()
    assert [shares.micro_batch for shares in shares_of(later)] == [1, 1]


def test_job_without_room_for_one_sequence_fails(start: Start) -> None:
    ranks = start(1)
    ranks.begin()
    limit(ranks.trainings[0], 0, torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        ranks.step()
    assert is_permanent_anywhere(caught.value)
