"""The room that the jobs of a zone take in the cell's snapshot."""

from collections import Counter

from streams.cell.live_bytes import LiveBytes, Refusal
from streams.policies.gang.job import GangJob


class JobsRoom:
    """Bytes that each job is counted for, and that all jobs of a user hold. They follow from the jobs."""

    def __init__(self, live: LiveBytes) -> None:
        self.live = live
        """The count of the whole cell."""
        self._counted: dict[str, int] = {}
        """Bytes that each job is counted for."""
        self.held: Counter[str] = Counter()
        """Bytes of all jobs of a user, with what the register keeps of them; only users with jobs."""

    def refuse(self, job: GangJob) -> Refusal:
        """Why there is no room for a new job; None if there is."""
        user, count = job.job.user, job.state_bytes
        held = self.held[user] + job.job.state_bytes
        return self.live.refuse_job(count) or self.live.refuse_share(user, held, count)

    def refuse_growth(self, count: int) -> Refusal:
        """Why there is no room for so much more about a job; None if there is."""
        return self.live.refuse_growth(count)

    def count(self, job: GangJob, state_bytes: int) -> None:
        """A job takes so many bytes from now on: see its `state_bytes`."""
        job_id, user = job.job.job_id, job.job.user
        if job_id not in self._counted:
            self.held[user] += job.job.state_bytes
        more = state_bytes - self._counted.get(job_id, 0)
        self._counted[job_id] = state_bytes
        self.held[user] += more
        self.live.add(more)

    def add(self, count: int) -> None:
        """The zone keeps so many bytes more that depend on its jobs, or fewer."""
        self.live.add(count)

    def remove(self, job: GangJob) -> None:
        """A job is over."""
        counted = self._counted.pop(job.job.job_id)
        self.live.add(-counted)
        self.held[job.job.user] -= counted + job.job.state_bytes
        if not self.held[job.job.user]:
            del self.held[job.job.user]
