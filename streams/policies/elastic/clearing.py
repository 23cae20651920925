"""Summary of the effects of clearing servers on jobs."""

from collections.abc import Collection, Mapping

from schemas.elastic.outcomes import ServersCleared
from streams.policies.elastic.elastic_job import ElasticJob


class ClearedServers:
    """Effects on the jobs that had workers on servers which are to leave."""

    def __init__(self, zone: str, leaving: Mapping[str, float | None]) -> None:
        """
        Args:
            leaving: time by which each server is due; None without one.
        """
        self._zone = zone
        self._leaving = leaving
        self._servers: dict[str, None] = {}
        self._preempting: dict[str, None] = {}
        self._preempted: list[str] = []
        self._scaled_in: list[str] = []
        self._collateral_gpus = 0

    def note(self, job: ElasticJob, kept_servers: Collection[str]) -> None:
        """Add a job, before its workers on the servers are ordered to end.

        Args:
            kept_servers: servers on which it keeps workers; none if it is preempted.
        """
        here = [server for server in job.members if server in self._leaving]
        if any(server in kept_servers for server in here):
            return  # it stays until it is over: its servers are not due
        self._servers |= dict.fromkeys(here)
        if kept_servers:
            self._scaled_in.append(job.job.job_id)
            return
        self._preempted.append(job.job.job_id)
        self._preempting |= dict.fromkeys(here)
        self._collateral_gpus += sum(
            workers * job.workload.gpus_per_worker
            for server, workers in job.members.items()
            if server not in self._leaving
        )

    def outcome(self, spared_jobs: int) -> ServersCleared:
        """Return the summary.

        Args:
            spared_jobs: number of jobs on other loaned servers that lose no workers.
        """
        dues_s = [due_s for server in self._servers if (due_s := self._leaving[server]) is not None]
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
