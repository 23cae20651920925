"""Merges by which a job may end too late are not offered."""

from typing import Any

from schemas.merging.problems import JobKind, MergeProblem, StepTime, TransferPair, Unit
from solvers.merging.merger import merge

STEPS = tuple(StepTime(gpus=gpus, step_s=1.0 / gpus) for gpus in (1, 2))


def unit(job_id: str, kind: int, iterations: float = 1_000.0, **fields: Any) -> Unit:
    defaults = {"job_ids": (job_id,), "waited_s": 0.0, "part": "any", "gpus": 0}
    return Unit.model_validate({**defaults, "kind": kind, "iterations": iterations, **fields})


def problem(*units: Unit, epoch: int = 100, ratio: float = 0.1, gpus: int = 2, **fields: Any) -> MergeProblem:
    """The first kind helps the second; each has epochs of so many steps."""
    kinds = 1 + max(one.kind for one in units)
    kind = JobKind(step_table=0, samples_per_step=1, dataset_samples=epoch)
    return MergeProblem(
        gpus=gpus,
        interval_s=10.0,
        switch_s=0.0,
        step_tables=(STEPS,),
        kinds=(kind,) * kinds,
        units=units,
        transfers=(TransferPair(mode="temporal", donor=0, receiver=1, receiver_ratio=ratio),),
        **fields,
    )


def merged(asked: MergeProblem) -> bool:
    return any(share.mode == "temporal" for share in merge(asked, 1.0).shares)


JOBS = unit("d", 0, 100.0, part="donor"), unit("r", 1), unit("x", 2, 20_000.0)


def test_cheap_to_undo_merge_is_offered() -> None:
    assert merged(problem(*JOBS, most_later=0.25))
    assert merged(problem(*JOBS)), "as it is without a bound"


def test_expensive_to_undo_merge_is_not_offered() -> None:
    """50 s until its donor is done, 800 s in vain and 500 s alone, with both GPUs; 1,000 s alone with one."""
    assert merged(problem(*JOBS, epoch=800))
    assert not merged(problem(*JOBS, epoch=800, most_later=0.25))
    assert merged(problem(*JOBS, epoch=800, most_later=0.5))


def test_longer_watch_risks_more() -> None:
    lost = [merged(problem(*JOBS, most_later=0.25, watched_epochs=epochs)) for epochs in (1, 2, 20)]
    assert lost == sorted(lost, reverse=True)
    assert (lost[0], lost[-1]) == (True, False)


def test_the_job_that_would_end_last_risks_nothing() -> None:
    last = unit("d", 0, 100.0, part="donor"), unit("r", 1), unit("x", 2, 10.0)
    assert merged(problem(*last))
    assert not merged(problem(*last, most_later=0.25, epoch=500))


def test_receiver_waits_at_most_merge_saving() -> None:
    jobs = unit("d", 0, 3_000.0, part="donor"), unit("r", 1), unit("x", 2, 20_000.0)
    assert not merged(problem(*jobs, most_later=10.0))


def test_a_merge_that_is_under_way_goes_on() -> None:
    donor = unit("d", 0, 100.0, part="donor", gpus=2, follower="r")
    assert merged(problem(donor, *JOBS[1:], epoch=800, most_later=0.25))
