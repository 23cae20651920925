"""What clearing servers takes from jobs, summed up."""

from collections.abc import Mapping

from schemas.elastic.outcomes import ServersCleared
from streams.policies.elastic.job import ElasticJob


class ClearedServers:
    """Takes the jobs that had workers on servers which are to leave, after these workers were told to go."""

    def __init__(self, zone: str, wanted: Mapping[str, float | None]) -> None:
        """
        Args:
            wanted: the servers, and when each must be back.
        """
        self._zone = zone
        self._wanted = wanted
        self._servers: dict[str, None] = {}
        self._preempting: dict[str, None] = {}
        self._preempted: list[str] = []
        self._scaled_in: list[str] = []
        self._collateral_gpus = 0

    def note(self, job: ElasticJob, gpus_before: Mapping[str, int]) -> None:
        """Take a job.

        Args:
            gpus_before: what it had on each server.
        """
        here = [server for server in gpus_before if server in self._wanted]
        if any(server in job.members for server in here):
            return  # it stays until it is over: nobody waits for its servers
        self._servers |= dict.fromkeys(here)
        if job.members:
            self._scaled_in.append(job.job.job_id)
            return
        self._preempted.append(job.job.job_id)
        self._preempting |= dict.fromkeys(here)
        self._collateral_gpus += sum(
            gpus for server, gpus in gpus_before.items() if server not in self._wanted
        )

    def outcome(self, spared_jobs: int) -> ServersCleared:
        """All of it.

        Args:
            spared_jobs: how many jobs have workers on other loaned servers and lose none.
        """
        dues_s = [due_s for server in self._servers if (due_s := self._wanted[server]) is not None]
        return ServersCleared(
            zone=self._zone,
            servers=tuple(self._servers),
            by_s=min(dues_s, default=None),
            preempted=tuple(self._preempted),
            scaled_in=tuple(self._scaled_in),
            preempting_servers=len(self._preempting),
            collateral_gpus=self._collateral_gpus,
            spared_jobs=spared_jobs,
        )
