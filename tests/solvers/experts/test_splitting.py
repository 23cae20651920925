"""The split of tokens over replicas against brute force, and the sizes of the all-to-all that follow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.experts.placement import FREE, ExpertPlacement
from solvers.experts.splitting import device_loads, even_split, sends, split_by_shares
from tests.solvers.experts.brute_force import least_largest_load
from tests.solvers.experts.strategies import COUNTS
from tests.support.examples import examples


@st.composite
def placements_and_tokens(draw):
    count = draw(st.integers(1, 5))
    devices = draw(st.integers(1, 5))
    lists = [draw(st.sets(st.integers(0, count - 1))) for _ in range(devices)]
    missing = set(range(count)).difference(*lists)
    lists[draw(st.integers(0, devices - 1))] |= missing
    tokens = draw(st.lists(COUNTS, min_size=count, max_size=count))
    return ExpertPlacement.of_lists([sorted(row) for row in lists], count, count), np.array(tokens)


def per_expert(placement, split):
    totals = np.zeros(placement.count, np.int64)
    for row, taken in zip(placement.experts, split, strict=True):
        for expert, tokens in zip(row, taken, strict=True):
            assert tokens >= 0
            if expert == FREE:
                assert tokens == 0
            else:
                totals[expert] += tokens
    return totals


@settings(max_examples=examples(500), deadline=None)
@given(placements_and_tokens())
def test_no_split_leaves_the_busiest_device_less(case):
    placement, tokens = case
    split = even_split(placement, tokens)
    assert per_expert(placement, split).tolist() == tokens.tolist()
    assert device_loads(split).max() == least_largest_load(placement.lists(), tokens.tolist())


def test_experts_yield_to_those_without_alternative():
    placement = ExpertPlacement.of_lists([[0, 1], [1, 2], [2, 3]], 4)
    assert device_loads(even_split(placement, np.array([9, 9, 0, 0]))).tolist() == [9, 9, 0]
    assert device_loads(even_split(placement, np.array([6, 6, 6, 0]))).tolist() == [6, 6, 6]
    assert even_split(placement, np.array([6, 6, 6, 3])).tolist() == [[6, 1], [5, 2], [4, 3]]


@settings(max_examples=examples(200), deadline=None)
@given(placements_and_tokens())
def test_planned_shares_lose_no_token(case):
    placement, tokens = case
    split = split_by_shares(placement, tokens)
    assert per_expert(placement, split).tolist() == tokens.tolist()
    for device in range(placement.devices):
        for slot, expert in enumerate(placement.experts[device]):
            if expert != FREE:
                planned = tokens[expert] * placement.shares[device, slot]
                assert abs(split[device, slot] - planned) <= 1


@settings(max_examples=examples(200), deadline=None)
@given(placements_and_tokens(), st.randoms(use_true_random=False))
def test_tokens_are_sent_once_and_mostly_stay(case, random):
    placement, tokens = case
    of_ranks = np.zeros((placement.devices, placement.count), np.int64)
    for expert, count in enumerate(tokens):
        for _ in range(min(count, 50)):
            of_ranks[random.randrange(placement.devices), expert] += 1
    split = even_split(placement, of_ranks.sum(axis=0))
    sent = sends(placement, split, of_ranks)
    assert sent.min() >= 0
    assert sent.sum(axis=0).tolist() == split.tolist()
    for rank in range(placement.devices):
        assert per_expert(placement, sent[rank]).tolist() == of_ranks[rank].tolist()
        for slot, expert in enumerate(placement.experts[rank]):
            if expert != FREE:
                assert sent[rank, rank, slot] == min(split[rank, slot], of_ranks[rank, expert])


def test_inconsistent_counts_are_refused():
    placement = ExpertPlacement.of_lists([[0], [1]], 2)
    with pytest.raises(ValueError, match="3 tokens of expert 1 are split and 2 counted"):
        sends(placement, even_split(placement, np.array([1, 3])), np.array([[1, 1], [0, 1]]))


def test_counts_of_another_number_of_experts_are_refused():
    with pytest.raises(ValueError, match="expected one for each of 2 experts"):
        even_split(ExpertPlacement.of_lists([[0], [1]], 2), np.array([1, 2, 3]))


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="-2 tokens of expert 1"):
        even_split(ExpertPlacement.of_lists([[0], [1]], 2), np.array([1, -2]))


def test_replicas_prefer_own_tokens_while_even():
    placement = ExpertPlacement.of_lists([[0, 1], [0, 2], [0, 3], [0]], 4, 2)
    split = even_split(placement, np.array([80, 20, 20, 20]))
    # A fourth of expert 0 stays on each device, and the fourth device takes what makes them even.
    assert device_loads(split).tolist() == [35, 35, 35, 35]
    assert split[:, 0].tolist() == [15, 15, 15, 35]
