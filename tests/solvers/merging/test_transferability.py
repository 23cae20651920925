"""Scores of pairs of tasks: by hand on small embeddings, and what must hold of all."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.transferability import Task2Feat, Task2Vec
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
def test_without_alpha_task2vec_is_symmetric_and_highest_for_a_task_itself(one, other):
    scorer = Task2Vec(alpha=0)
    assert scorer.score(one, other) == scorer.score(other, one)
    assert scorer.score(one, other) <= scorer.score(one, one) + 1e-12
    assert scorer.score(one, one) == pytest.approx(0, abs=1e-12)


def test_directions_in_which_neither_task_has_information_do_not_count():
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
