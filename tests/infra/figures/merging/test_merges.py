"""Merged pairs of jobs, and the jobs whose merges hold."""

from typing import Literal

import pytest

from infra.figures.merging.merges import Merge
from schemas.merging.commands import TransferMode
from schemas.merging.estimates import MergeMode
from schemas.merging.outcomes import MergeEvaluated, TaskChanged, TaskChangeReason

Verdict = Literal["finished", "undone", "ended_early"]


def changed(reason: TaskChangeReason, mode: TransferMode, *job_ids: str, gpus: int = 1) -> TaskChanged:
    return TaskChanged(
        zone="z",
        task_id="t1",
        generation=1,
        mode=mode,
        job_ids=job_ids,
        reason=reason,
        gpus_before=1,
        gpus=gpus,
        members=(),
        remaining_s=0.0,
    )


def evaluated_job(reason: Verdict, mode: MergeMode, job_id: str, partner: str) -> MergeEvaluated:
    return MergeEvaluated(
        zone="z",
        job_id=job_id,
        partner=partner,
        mode=mode,
        reason=reason,
        foretold_gain=0.0,
        gain=None,
        foretold_iterations=1,
        iterations=1,
        iterations_alone=1,
        saved_s=0.0,
    )


def after(*outcomes: TaskChanged | MergeEvaluated) -> Merge:
    """The one merge, of a and b, after these decisions."""
    first, *later = outcomes
    assert isinstance(first, TaskChanged)
    merge = Merge.of(first)
    assert merge is not None
    for outcome in later:
        if isinstance(outcome, TaskChanged):
            assert Merge.of(outcome) is None
            merge.change(outcome)
        else:
            merge.evaluated[outcome.job_id] = outcome
    return merge


def undone_for(merge: Merge) -> list[str]:
    assert [job_id for job_id in merge.jobs if not merge.holds_for(job_id)] == [
        job_id for job_id in merge.jobs if merge.is_undone_for(job_id)
    ]
    return [job_id for job_id in merge.jobs if merge.is_undone_for(job_id)]


def test_completed_half_of_spatial_merge_keeps_it() -> None:
    merge = after(
        changed("merged", "spatial", "a", "b"),
        changed("job_over", "normal", "b"),
        evaluated_job("finished", "spatial", "a", "b"),
        changed("undone", "normal", "b", gpus=0),
        evaluated_job("undone", "spatial", "b", "a"),
    )
    assert merge.is_undone
    assert undone_for(merge) == ["b"]


def test_continuing_half_of_spatial_merge_keeps_it() -> None:
    merge = after(
        changed("merged", "spatial", "a", "b"),
        changed("undone", "spatial", "a", "b", gpus=0),
        evaluated_job("undone", "spatial", "b", "a"),
        changed("started", "normal", "a"),
    )
    assert undone_for(merge) == ["b"]


@pytest.mark.parametrize("job_ids", [("a", "b"), ("b",)], ids=["while-the-donor-trains", "later"])
def test_temporal_merge_is_undone_for_donor_too(job_ids: tuple[str, ...]) -> None:
    merge = after(
        changed("merged", "temporal", "a", "b"),
        changed("undone", "temporal", *job_ids, gpus=0),
        evaluated_job("undone", "temporal", "b", "a"),
    )
    assert undone_for(merge) == ["a", "b"]


def test_spatial_merge_undone_for_both_counts_for_neither() -> None:
    merge = after(
        changed("merged", "spatial", "a", "b"),
        changed("undone", "spatial", "a", "b", gpus=0),
        evaluated_job("undone", "spatial", "a", "b"),
        evaluated_job("undone", "spatial", "b", "a"),
    )
    assert undone_for(merge) == ["a", "b"]


def test_chain_split_before_receiver_counts_for_neither() -> None:
    merge = after(changed("merged", "temporal", "a", "b"), changed("separated", "normal", "a"))
    assert not merge.is_undone
    assert not merge.holds_for("a")
    assert not merge.holds_for("b")
