"""Scores of pairs of tasks: by hand on small embeddings, and what must hold of all."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.transferability import Task2Feat, Task2Vec, leep, spatial_score
from tests.support.examples import examples

FISHER = st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=4)


def test_task2vec_by_hand():
    # F_a / (F_a + F_b) = (1/4, 1/2), F_b / (F_a + F_b) = (3/4, 1/2): cosine (3/16 + 1/4) / |.| |.|.
    cosine = (3 / 16 + 1 / 4) / (math.sqrt(1 / 16 + 1 / 4) * math.sqrt(9 / 16 + 1 / 4))
    assert Task2Vec(alpha=0).score((1, 2), (3, 2)) == pytest.approx(cosine - 1)


def test_task2vec_prefers_donors_that_are_far_from_trivial():
    plain, peculiar = (1.0, 1.0, 1.0), (0.1, 0.4, 2.5)
    scorer = Task2Vec(alpha=0.15, trivial=(1.0, 1.0, 1.0))
    assert scorer.score(peculiar, plain) > scorer.score(plain, peculiar)
    assert Task2Vec().score(peculiar, plain) == scorer.score(peculiar, plain), "by default: evenly spread"


@settings(max_examples=examples(200), deadline=None)
@given(FISHER, FISHER)
def test_task2vec_without_alpha_is_symmetric(one, other):
    scorer = Task2Vec(alpha=0)
    assert scorer.score(one, other) == scorer.score(other, one)
    assert scorer.score(one, other) <= scorer.score(one, one) + 1e-12
    assert scorer.score(one, one) == pytest.approx(0, abs=1e-12)


@settings(max_examples=examples(200), deadline=None)
@given(FISHER, FISHER)
def test_spatial_score_averages_both_directions(one, other):
    scorer = Task2Vec()
    average = (scorer.score(one, other) + scorer.score(other, one)) / 2
    assert spatial_score(scorer, one, other) == spatial_score(scorer, other, one) == average


def test_uninformed_directions_do_not_count():
    assert Task2Vec(alpha=0).score((1, 2, 0), (3, 2, 0)) == Task2Vec(alpha=0).score((1, 2), (3, 2))
    assert Task2Vec(alpha=0).score((0, 0), (0, 0)) == -1
    assert Task2Vec(alpha=0).score((1, 0), (0, 1)) == -1


def test_task2feat_is_a_cosine():
    assert Task2Feat().score((1, 0), (5, 0)) == 1
    assert Task2Feat().score((1, 0), (0, 5)) == 0
    assert Task2Feat().score((1, 0), (-2, 0)) == -1


@pytest.mark.parametrize("scorer", [Task2Vec(), Task2Feat()])
@pytest.mark.parametrize(("one", "other"), [((1, 2), (1, 2, 3)), ((), ())])
def test_embeddings_of_different_length_are_refused(scorer, one, other):
    with pytest.raises(ValueError, match=f"not {len(one)} .donor. and {len(other)}"):
        scorer.score(one, other)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_values_that_no_fisher_information_has_are_refused(bad):
    with pytest.raises(ValueError, match="receiver"):
        Task2Vec().score((1, 2), (1, bad))
    with pytest.raises(ValueError, match="trivial"):
        Task2Vec(trivial=(1.0,)).score((1, 2), (1, 2))


def test_features_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        Task2Feat().score((1, 2), (1, math.nan))


def test_leep_by_hand():
    # Classes of A that tell B's labels exactly, and ones that tell nothing.
    assert leep([[1, 0], [0, 1], [1, 0]], [0, 1, 0]) == pytest.approx(0)
    assert leep([[0.5, 0.5]] * 4, [0, 1, 0, 1]) == pytest.approx(math.log(0.5))
    # P(z) = (1.2, 0.8) / 2; P(y=0|z) = (0.9, 0.1) / (1.2, 0.8), P(y=1|z) = (0.3, 0.7) / (1.2, 0.8).
    first = 0.9 * 0.9 / 1.2 + 0.1 * 0.1 / 0.8
    second = 0.3 * 0.3 / 1.2 + 0.7 * 0.7 / 0.8
    expected = (math.log(first) + math.log(second)) / 2
    assert leep([[0.9, 0.1], [0.3, 0.7]], [0, 1]) == pytest.approx(expected)


def test_leep_rises_with_predictive_classes():
    random = np.random.default_rng(3)
    labels = random.integers(0, 3, 500)
    scores = []
    for sharpness in (0.0, 1.0, 3.0):
        logits = sharpness * np.eye(3)[labels] + random.standard_normal((500, 3)) * 0.1
        theta = np.exp(logits)
        scores.append(leep(theta / theta.sum(axis=1, keepdims=True), labels))
    assert scores == sorted(scores)
    assert scores[-1] < 0


@pytest.mark.parametrize(
    ("theta", "labels", "says"),
    [
        ([0.5, 0.5], [0, 1], "shape"),
        ([[1.0]], [0, 1], "shape"),
        ([], [], "shape"),
        ([[0.5, 0.6]], [0], "distribution"),
        ([[1.5, -0.5]], [0], "distribution"),
        ([[np.nan, 1.0]], [0], "distribution"),
        ([[0.5, 0.5]], [-1], "labels"),
        ([[0.5, 0.5]], [0.0], "labels"),
    ],
)
def test_leep_refuses_what_it_cannot_read(theta, labels, says):
    with pytest.raises(ValueError, match=says):
        leep(theta, labels)
