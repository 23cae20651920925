"""How a zone stands, told each few intervals: what runs, and how good its foretelling was."""

from typing import Any

from schemas.merging.outcomes import ForetellingErrors, MergeJudged, ZoneMerged
from streams.policies.merging.tasks import Tasks

_INTERVALS_BETWEEN = 5


class Standing:
    """Of one zone."""

    def __init__(self, epoch_s: float) -> None:
        self._next_s = epoch_s
        self._finished = 0
        self._undone = 0
        self._saved_s = 0.0
        self._last: ZoneMerged | None = None

    def note(self, told: MergeJudged) -> None:
        """What came of a merge."""
        self._finished += told.reason == "finished"
        self._undone += told.reason == "undone"
        self._saved_s += told.saved_s

    def due(self, time_s: float, tasks: Tasks, interval_s: float) -> ZoneMerged | None:
        """How things stand, if it is time to tell and anything is new."""
        if time_s < self._next_s:
            return None
        self._next_s = time_s + _INTERVALS_BETWEEN * interval_s
        running = {job_id for task in tasks.all.values() for job_id in task.active_job_ids}
        profiling = sum(job.stage == "profiling" for job in tasks.jobs.values())
        told = ZoneMerged(
            zone=tasks.zone,
            jobs_waiting=sum(
                job.stage != "profiling" and job.job_id not in running for job in tasks.jobs.values()
            ),
            jobs_profiling=profiling,
            jobs_running=len(running),
            gpus=tasks.gpus.total,
            used_gpus=tasks.gpus.used,
            temporal_merges=sum(task.follower is not None for task in tasks.all.values()),
            spatial_merges=sum(
                task.mode == "spatial" and len(task.job_ids) == 2 for task in tasks.all.values()
            ),
            merges_finished=self._finished,
            merges_undone=self._undone,
            saved_s=self._saved_s,
            errors=ForetellingErrors(),
        )
        if told == self._last:
            return None
        self._last = told
        return told

    def state(self) -> list[Any]:
        """Of types that msgpack writes."""
        last = None if self._last is None else self._last.model_dump_json()
        return [self._next_s, self._finished, self._undone, self._saved_s, last]

    def restore(self, state: list[Any]) -> None:
        """Take a state."""
        self._next_s, self._finished, self._undone, self._saved_s, last = state
        self._last = None if last is None else ZoneMerged.model_validate_json(last)
