"""What schemes of allocation are asked, and what they answer.

A scheme gives each job a number of GPUs, of those that the job may have. Placing them on nodes comes after.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Contender(NamedTuple):
    """A job that waits for GPUs or has some."""

    job_id: str
    arrival: int
    """Rank by submission: smaller came earlier. No two jobs have the same."""
    submitted_s: float
    """Unix seconds."""
    waited_s: float
    """Seconds in which it had no GPUs and could have used some, in all."""
    running_s: float
    """Seconds in which it had GPUs, in all."""
    attained_gpu_s: float
    """GPU-seconds that it has had, in all."""
    asked_gpus: int
    """What its user asks for: schemes that never change a job's size give it so many, or none."""
    remaining_s: Mapping[int, float]
    """By number of GPUs that it may have, how long what is left of it takes with them, as estimated
    (T_{i,a}). Ascending, and never empty; a number that is no faster than a smaller one is left out."""
    total_s: Mapping[int, float]
    """The same for all of it, from its first iteration on; by the same numbers."""
    gpus: int
    """What it has now; 0 for a job that waits."""
    held_s: float = 0.0
    """Seconds since it started or its size last changed; 0 for a job that waits. Themis' leases end by it,
    and never where it is left out."""
    restarts: int = 0
    """How often it was stopped or its size changed, in all. Pollux counts it against one more."""


class Scheme(Protocol):
    """How GPUs are allocated. Deterministic: ties go by `arrival`."""

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """Decide one round.

        Args:
            jobs: in the order of their arrival.
            gpus: that may be given.
            time_s: Unix seconds.

        Returns:
            by job, how many GPUs it has from now on, each of its `remaining_s` and `gpus` together at most. A
            job that is left out has none.
        """
