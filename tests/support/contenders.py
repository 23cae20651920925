"""Jobs that contend for GPUs under a scheme of allocation: builders and a strategy."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from solvers.merging.scheme_interface import Contender

NOW_S = 100_000.0
"""Time of the rounds that are drawn."""


def contender(job_id: str, arrival: int, remaining_s: Mapping[int, float], **fields: Any) -> Contender:
    """A job that was just submitted and asks for its largest size."""
    given: dict[str, Any] = {
        "submitted_s": NOW_S,
        "waited_s": 0.0,
        "running_s": 0.0,
        "attained_gpu_s": 0.0,
        "asked_gpus": max(remaining_s),
        "total_s": remaining_s,
        "gpus": 0,
    }
    given.update(fields)
    return Contender(job_id=job_id, arrival=arrival, remaining_s=remaining_s, **given)


@st.composite
def crowds(draw: st.DrawFn, max_jobs: int = 8, max_gpus: int = 24) -> tuple[list[Contender], int]:
    """Jobs by arrival, of which some run, and the GPUs, those that are held among them."""
    jobs: list[Contender] = []
    held = 0
    for arrival in range(draw(st.integers(0, max_jobs))):
        sizes = draw(st.sampled_from([(1, 2, 3, 4, 8), (1, 2, 4), (2, 4, 8), (4, 8), (1,), (3,)]))
        total_s, seconds = {}, draw(st.floats(10.0, 1e5))
        for size in sizes:
            total_s[size] = seconds
            seconds *= draw(st.floats(0.3, 0.99))
        part = draw(st.floats(0.001, 1.0))
        gpus = draw(st.sampled_from([0, *sizes]))
        held += gpus
        age_s = draw(st.floats(0.0, 9e4))
        running_s = age_s * draw(st.floats(0.0, 1.0))
        jobs.append(
            contender(
                f"job-{arrival}",
                arrival,
                {size: part * each_s for size, each_s in total_s.items()},
                total_s=total_s,
                submitted_s=NOW_S - age_s,
                waited_s=age_s - running_s,
                running_s=running_s,
                attained_gpu_s=running_s * draw(st.integers(1, 8)),
                asked_gpus=draw(st.integers(1, 16)),
                gpus=gpus,
                held_s=running_s * draw(st.floats(0.0, 1.0)) if gpus else 0.0,
                restarts=draw(st.integers(0, 3)),
            )
        )
    return jobs, held + draw(st.integers(0, max_gpus))
