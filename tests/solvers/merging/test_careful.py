"""Plans whose merges delay no job: against the plan without merges, and after its merges are undone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.merging.problems import JobKind, MergeProblem, Share, StepTime, TransferPair, Unit
from solvers.merging.careful import Forecast, forecast, new_merges, plan
from solvers.merging.merger import merge
from tests.support.examples import examples

STEPS = tuple(StepTime(gpus=gpus, step_s=1.0 / gpus) for gpus in (1, 2))
LIMIT_S = 1.0


def unit(job_id: str, kind: int, iterations: float = 1_000.0, **fields: Any) -> Unit:
    defaults = {"job_ids": (job_id,), "waited_s": 0.0, "part": "any", "gpus": 0}
    return Unit.model_validate({**defaults, "kind": kind, "iterations": iterations, **fields})


def problem(*units: Unit, ratio: float = 0.1, mode: str = "temporal", **fields: Any) -> MergeProblem:
    """The first kind helps the second; each has epochs of a hundred steps."""
    kind = JobKind(step_table=0, samples_per_step=1, dataset_samples=100)
    transfer = {"mode": mode, "donor": 0, "receiver": 1, "receiver_ratio": ratio, "donor_ratio": ratio}
    return MergeProblem.model_validate(
        {
            "gpus": 2,
            "interval_s": 10.0,
            "switch_s": 0.0,
            "step_tables": (STEPS,),
            "kinds": (kind,) * (1 + max(one.kind for one in units)),
            "units": units,
            "transfers": (TransferPair.model_validate(transfer),),
            "most_later": 10.0,
            **fields,
        }
    )


def alone(job_id: str, gpus: int) -> Share:
    return Share(job_ids=(job_id,), mode="normal", gpus=gpus)


def test_jobs_end_by_steps_or_free_gpus() -> None:
    asked = problem(unit("a", 0, 100.0, age_s=7.0), unit("b", 1, 50.0), unit("c", 2, 60.0, age_s=1.0))
    told = forecast(asked, (alone("a", 2),))
    # a: 50 s and 7 s before; b and c then have a GPU each.
    assert told.longest_s == pytest.approx(1 + 50 + 60)
    assert told.mean_s == pytest.approx((57 + 100 + 111) / 3)


def test_receiver_ends_later_after_undone_merge() -> None:
    asked = problem(unit("a", 0, 100.0), unit("b", 1, 1_000.0), ratio=0.2, watched_epochs=2)
    merged = (Share(job_ids=("a", "b"), mode="temporal", gpus=2),)
    assert forecast(asked, merged).longest_s == pytest.approx(50 + 0.2 * 500)
    assert forecast(asked, merged, is_undone=True).longest_s == pytest.approx(50 + 100 + 500)


def test_spatial_jobs_end_after_own_epochs() -> None:
    asked = problem(unit("a", 0, 400.0), unit("b", 1, 1_000.0), ratio=0.5, mode="spatial")
    merged = (Share(job_ids=("a", "b"), mode="spatial", gpus=2),)
    # An epoch of both has 100 steps of 1 s.
    told = forecast(asked, merged)
    assert told == pytest.approx(Forecast((200 + 500) / 2, 500.0))
    undone = forecast(asked, merged, is_undone=True)
    assert undone == pytest.approx(Forecast((400 + 900) / 2, 900.0))


def test_running_merge_is_not_new() -> None:
    asked = problem(unit("a", 0, gpus=2, follower="b", part="donor"), unit("b", 1))
    shares = (Share(job_ids=("a", "b"), mode="temporal", gpus=2),)
    assert new_merges(asked, shares) == []
    assert new_merges(problem(unit("a", 0), unit("b", 1)), shares) == list(shares)


QUICK = unit("d", 0, 100.0, part="donor", gpus=2), unit("r", 1)


def modes(asked: MergeProblem) -> list[str]:
    return [share.mode for share in plan(asked, LIMIT_S).shares]


def test_merge_helping_all_jobs_is_planned() -> None:
    assert modes(problem(*QUICK, unit("x", 2, 5_000.0))) == ["temporal"]


def test_merge_risking_slowest_job_is_avoided() -> None:
    """`r` is the slowest: without the merge it has all GPUs after 50 s, and with it 100 s in vain."""
    asked = problem(*QUICK)
    assert [share.mode for share in merge(asked, LIMIT_S).shares] == ["temporal"]
    assert modes(asked) == ["normal"]


def test_merge_delaying_longest_job_is_avoided() -> None:
    """`x` has one GPU after 50 s, or both after 400 s where `r` is merged: it ends at 650 or at 700 s.
    Where it was submitted long before, its completion time is the longest."""
    asked, old = (problem(*QUICK, unit("x", 2, 600.0, age_s=age_s), ratio=0.7) for age_s in (0.0, 10_000.0))
    assert modes(asked) == ["temporal"]
    assert modes(old) == ["normal"]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.floats(1.0, 5_000.0),
        st.floats(0.0, 5_000.0),
        st.sampled_from(("any", "donor", "none")),
        st.integers(0, 2),
    ),
    min_size=2,
    max_size=6,
)


def drawn(
    jobs: list[tuple[int, float, float, str, int]], ratio: float, mode: str, later: float
) -> MergeProblem:
    left, units = 2, []
    for number, (kind, iterations, age_s, part, wanted) in enumerate(jobs):
        gpus = min(wanted, left) if part != "any" else 0
        left -= gpus
        units.append(unit(f"j{number}", kind, iterations, age_s=age_s, part=part, gpus=gpus))
    return problem(*units, unit("z", 2), ratio=ratio, mode=mode, most_later=later)


@settings(max_examples=examples(60), deadline=None)
@given(JOBS, st.floats(0.02, 1.5), st.sampled_from(("temporal", "spatial")), st.floats(0.0, 3.0))
def test_plan_is_no_worse_than_without_merging(
    jobs: list[tuple[int, float, float, str, int]], ratio: float, mode: str, later: float
) -> None:
    asked = drawn(jobs, ratio, mode, later)
    unmerged = merge(asked.model_copy(update={"transfers": ()}), LIMIT_S)
    found = plan(asked, LIMIT_S)
    before, after = forecast(asked, unmerged.shares), forecast(asked, found.shares)
    if not new_merges(asked, found.shares):
        assert found.shares == unmerged.shares
        return
    assert after.mean_s < before.mean_s
    assert after.longest_s <= before.longest_s
    assert forecast(asked, found.shares, is_undone=True).longest_s <= before.longest_s


def test_missing_evidence_gives_plan_without_merging() -> None:
    asked = problem(*QUICK, unit("x", 2, 5_000.0)).model_copy(update={"transfers": ()})
    assert plan(asked, LIMIT_S) == merge(asked, LIMIT_S)
