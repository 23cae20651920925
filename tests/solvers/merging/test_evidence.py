"""Whether past merges show that a merge pays, or whether a trial may find out."""

import pytest

from schemas.merging.estimates import MergeMode
from solvers.merging.evidence import LEAST_SAVING, MOST_LOST, MergeResult, PastMerges
from solvers.merging.pairs import Candidate

WATCHED = 2.0


def merge(donor: str, receiver: str, mode: MergeMode = "temporal") -> Candidate:
    return Candidate(donor, receiver, mode, 1_000, 1_000, 0.0)


def result(asked: Candidate, epochs: float | None, lost: float | None = None) -> MergeResult:
    """Result of a merge whose receiver needs ten epochs alone."""
    return MergeResult(asked, 0.8, 0.7 if epochs is None else 0.8, epochs, 10.0, lost)


def evidence(results: list[MergeResult], *learners: Candidate, ratio: float = 0.3) -> str:
    past = PastMerges(results, WATCHED)
    savings = past.savings(list(learners))
    return past.evidence(dict(zip(learners, savings, strict=True)), [ratio] * len(learners))


def test_first_trial_precedes_evidence() -> None:
    assert evidence([], merge("a", "b")) == "trial"
    assert evidence([], merge("a", "b"), ratio=1.0) == "none", "nobody expects it to save anything"
    past = PastMerges([], WATCHED)
    assert past.savings([]) == []
    (saving,) = past.savings([merge("a", "b")])
    assert saving.mean == 0.0 > saving.least


def test_paid_merges_show_others_of_receiver() -> None:
    paid = [result(merge(donor, "b"), 3.0) for donor in "cdef"]
    assert evidence(paid, merge("a", "b")) == "shown"
    (saving,) = PastMerges(paid, WATCHED).savings([merge("a", "b")])
    assert LEAST_SAVING < saving.least < saving.mean < 0.75


def test_failed_first_trial_ends_mode_of_receiver() -> None:
    failed = [result(merge("a", "b"), None)]
    assert evidence(failed, merge("c", "b")) == "none"
    assert evidence(failed, merge("c", "b", "spatial"), merge("b", "c", "spatial")) == "trial"
    assert evidence(failed, merge("a", "c")) == "trial", "another receiver may still gain"


def test_mode_ends_after_two_more_failures() -> None:
    failed = [result(merge("a", receiver), None) for receiver in "bc"]
    assert evidence(failed, merge("a", "d")) == "none"
    paid = [result(merge("a", "e"), 2.0)]
    assert evidence(failed + paid, merge("a", "d")) == "trial"


def test_even_chances_show_nothing() -> None:
    """Half of them save nearly all, so that the mean and its bound are positive."""
    mixed = [result(merge("a", "b"), 0.5 if n % 2 else 11.0) for n in range(40)]
    (saving,) = PastMerges(mixed, WATCHED).savings([merge("a", "b")])
    assert saving.least > LEAST_SAVING
    assert evidence(mixed, merge("a", "b")) == "none"


def test_both_jobs_of_a_spatial_merge_must_gain() -> None:
    paid = [result(merge(donor, "b", "spatial"), 3.0) for donor in "cdef"]
    failed = [result(merge("b", donor, "spatial"), None) for donor in "cdef"]
    one, other = merge("c", "b", "spatial"), merge("b", "c", "spatial")
    assert evidence(paid + failed, one) == "shown"
    assert evidence(paid + failed, one, other) == "none"


@pytest.mark.parametrize(("lost", "saved"), [(None, -0.2), (10.0, -1.0), (1_000.0, -MOST_LOST)])
def test_undone_merge_costs_wasted_training(lost: float | None, saved: float) -> None:
    past = PastMerges([result(merge("a", "b"), None, lost=lost)], WATCHED)
    assert past._savings[0][1] == pytest.approx(saved)


def test_self_merges_and_others_count_separately() -> None:
    paid = [result(merge(donor, "b"), 3.0) for donor in "cdef"]
    assert evidence(paid, merge("b", "b")) == "trial"
    assert evidence([], merge("b", "b")) == "none", "not before others have paid in its mode"
    own = [result(merge("b", "b"), None)]
    assert evidence(paid + own, merge("b", "b")) == "none"
    assert evidence(paid + own, merge("a", "b")) == "shown"
