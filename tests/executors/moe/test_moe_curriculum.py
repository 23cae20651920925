"""The order of training data by complexity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from executors.moe.training.samples import Curriculum, order_by_complexity


def order(vectors: list[list[float]], tokens: list[int] | None = None) -> list[int]:
    lengths = np.array(tokens or [10] * len(vectors))
    return order_by_complexity(np.array(vectors, dtype=np.float64), lengths).tolist()


def test_samples_follow_by_cosine_similarity_to_the_simplest() -> None:
    # The angles to the simplest, sample 2, are 45, 18.4, 0 and 90 degrees.
    assert order([[0.3, 0.0], [0.4, 0.2], [0.1, 0.1], [0.9, 0.3]]) == [2, 1, 3, 0]


def test_simplest_sample_has_fewest_doubled_tokens() -> None:
    vectors = [[0.4, 0.0], [0.0, 0.2]]
    assert order(vectors, [10, 30]) == [0, 1]
    assert order(vectors, [10, 10]) == [1, 0]


def test_samples_of_one_direction_follow_by_their_ratio() -> None:
    assert order([[0.9, 0.9], [0.3, 0.3], [0.1, 0.1], [0.6, 0.6]]) == [2, 1, 3, 0]
    assert order([[0.9], [0.3], [0.1], [0.6]]) == [2, 1, 3, 0]


def test_samples_without_doubled_tokens_come_first() -> None:
    assert order([[0.0, 0.8], [0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [0.0, 0.0]]) == [1, 4, 2, 3, 0]
    assert order([[0.0, 0.0], [0.0, 0.0]]) == [0, 1]


@given(st.integers(1, 12).flatmap(lambda samples: arrays(np.float64, (samples, 3), elements=st.floats(0, 1))))
def test_every_sample_has_its_place(vectors: np.ndarray) -> None:
    tokens = np.full(len(vectors), 8)
    assert sorted(order_by_complexity(vectors, tokens).tolist()) == list(range(len(vectors)))


def recorded(seed: int = 0) -> Curriculum:
    curriculum = Curriculum(samples=7, layers=2, seed=seed)
    ratios = np.array([[0.9, 0.1, 0.5, 0.0, 0.7], [0.9, 0.1, 0.5, 0.0, 0.7]])
    curriculum.record(np.array([0, 1, 2, 4, 6]), ratios, np.full(5, 10))
    return curriculum


def epoch(curriculum: Curriculum, number: int, batch_size: int = 2) -> list[list[int]]:
    return [batch.tolist() for batch in curriculum.batches(number, batch_size)]


def test_batches_group_like_complexity() -> None:
    batches = epoch(recorded(), 1)
    assert batches[:2] == [[4, 1], [2, 6]]
    assert batches[2][0] == 0
    assert {batches[2][1], *batches[3]} == {3, 5}


def test_initial_order_follows_seed_and_epoch() -> None:
    def first(seed: int, number: int) -> list[list[int]]:
        return epoch(Curriculum(50, 1, seed), number, 50)

    assert sorted(first(1, 0)[0]) == list(range(50))
    assert first(1, 0) == first(1, 0)
    assert len({str(first(seed, number)) for seed in (1, 2) for number in (0, 1)}) == 4


def test_the_order_follows_what_was_recorded_last() -> None:
    curriculum = recorded()
    curriculum.record(np.array([4]), np.array([[1.0], [1.0]]), np.array([10]))
    assert epoch(curriculum, 2, 5)[0] == [1, 2, 6, 0, 4]


def test_seed_and_records_determine_batches() -> None:
    assert epoch(recorded(5), 3) == epoch(recorded(5), 3)


def test_bad_input_is_refused() -> None:
    curriculum = Curriculum(4, 2, 0)
    with pytest.raises(ValueError, match="0 samples and 2 layers"):
        Curriculum(0, 2, 0)
    with pytest.raises(ValueError, match="batch size 0 is below 1"):
        curriculum.batches(0, 0)
    with pytest.raises(ValueError, match=r"ratios of shape \(1, 2\)"):
        curriculum.record(np.array([0, 1]), np.zeros((1, 2)), np.array([3, 3]))
    with pytest.raises(ValueError, match=r"outside \[0, 1\]"):
        curriculum.record(np.array([0]), np.array([[1.5], [0.0]]), np.array([3]))
