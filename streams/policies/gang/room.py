"""Bytes of the jobs of a zone in the cell's snapshot."""

from collections import Counter

from streams.cell.live_bytes import LiveBytes, Refusal
from streams.policies.gang.gang_job import GangJob


class JobsRoom:
    """Bytes by job and by user. They follow from the jobs."""

    def __init__(self, live: LiveBytes) -> None:
        self.live = live
        """Bytes of the whole cell."""
        self._counted: dict[str, int] = {}
        """Counted bytes by job."""
        self.held: Counter[str] = Counter()
        """Bytes of all jobs by user, in the zone and in the register; only users with jobs."""

    def refuse(self, job: GangJob) -> Refusal:
        """Return why there is no room for a new job; None if there is."""
        user, count = job.job.user, job.state_bytes
        held = self.held[user] + job.job.state_bytes
        return self.live.refuse_job(count) or self.live.refuse_share(user, held, count)

    def refuse_growth(self, count: int) -> Refusal:
        """Return why there is no room for more bytes of a job; None if there is."""
        return self.live.refuse_growth(count)

    def count(self, job: GangJob, state_bytes: int) -> None:
        """Set the bytes of a job: see its `state_bytes`."""
        job_id, user = job.job.job_id, job.job.user
        if job_id not in self._counted:
            self.held[user] += job.job.state_bytes
        more = state_bytes - self._counted.get(job_id, 0)
        self._counted[job_id] = state_bytes
        self.held[user] += more
        self.live.add(more)

    def add(self, count: int) -> None:
        """Add bytes that the zone keeps for its jobs together; `count` may be negative."""
        self.live.add(count)

    def remove(self, job: GangJob) -> None:
        """Remove a job that is over."""
        counted = self._counted.pop(job.job.job_id)
        self.live.add(-counted)
        self.held[job.job.user] -= counted + job.job.state_bytes
        if not self.held[job.job.user]:
            del self.held[job.job.user]
