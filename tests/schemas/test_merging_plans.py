"""Answers of solvers to a merging zone: plans that cannot be carried out are refused by name."""

import pytest
from pydantic import ValidationError

from schemas.merging.problems import MergeSolution, Share


@pytest.mark.parametrize(
    ("mode", "job_ids"),
    [
        ("normal", ("a", "b")),
        ("temporal", ("a",)),
        ("spatial", ("a",)),
        ("temporal", ("a", "a")),
        ("spatial", ("a", "a")),
    ],
)
def test_share_has_jobs_of_its_mode(mode: str, job_ids: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match=f"a share of mode {mode} has"):
        Share(job_ids=job_ids, mode=mode, gpus=1)


def test_a_plan_has_one_share_for_a_job() -> None:
    shares = Share(job_ids=("a",), mode="normal", gpus=1), Share(job_ids=("b", "a"), mode="spatial", gpus=1)
    with pytest.raises(ValidationError, match="job a has two"):
        MergeSolution(shares=shares)
