"""Epochs to an accuracy target: what is known counts in the order of how much it tells."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.accuracy_target import Evaluation, TargetedJob, epochs_to_target
from tests.support.examples import examples


def job(
    task: str = "red", target: float = 0.8, most: float = 10, *accuracies: float, setting: str = "usual"
) -> TargetedJob:
    """Evaluated once an epoch."""
    return TargetedJob(
        task, setting, target, most, tuple(Evaluation(n, a) for n, a in enumerate(accuracies, 1))
    )


def test_a_target_that_is_met_already_is_met():
    assert epochs_to_target(job("red", 0.8, 10, 0.7, 0.8, 0.75), []) == (2, "met")


def test_same_target_of_task_gives_time():
    earlier = job("red", 0.9, 10, 0.5, 0.7, 0.79, 0.85, 0.91)
    assert epochs_to_target(job(target=0.8), [earlier]) == (4, "same_setting")
    assert epochs_to_target(job(target=0.7), [earlier]) == (2, "same_setting")
    assert epochs_to_target(job(target=0.95), [earlier]) == (10, "same_setting"), "it never came there"


def test_several_earlier_jobs_give_their_median():
    earlier = [job("red", 0.8, 10, *[0.5] * epochs, 0.9) for epochs in (1, 3, 8)]
    assert epochs_to_target(job(target=0.8), earlier).epochs == 4


def test_other_setting_gives_share_for_own_target():
    earlier = job("red", 0.9, 20, *[0.5] * 11, 0.91, setting="slow")
    blue = job("blue", 0.9, 10, 0.95)
    assert epochs_to_target(job(target=0.5), [blue, earlier]) == (6, "same_task")
    usual = job("red", 0.8, 10, 0.5, 0.8)
    assert epochs_to_target(job(), [blue, earlier, usual]) == (2, "same_setting")


def test_other_tasks_give_usual_share_once_each():
    blue = [job("blue", 0.8, 10, 0.5, 0.8)] * 50
    grey = job("grey", 0.6, 20, *[0.5] * 15, 0.6)
    never = job("pale", 0.9, 5, 0.1, 0.2)
    assert epochs_to_target(job(most=30), [*blue, grey, never]) == (pytest.approx(24), "other_tasks")


def test_without_any_finished_job_it_is_the_limit():
    assert epochs_to_target(job(most=7), []) == (7, "limit")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.floats(0, 1), max_size=6), st.lists(st.lists(st.floats(0, 1), max_size=12), max_size=4))
def test_estimate_stays_between_seen_and_limit(own, others):
    asked = job("red", 0.9, 10, *own)
    finished = [job("red" if n % 2 else "blue", 0.5, 12, *curve) for n, curve in enumerate(others)]
    found = epochs_to_target(asked, finished)
    assert found.epochs <= 10
    assert found.basis == "met" or found.epochs >= len(own)
