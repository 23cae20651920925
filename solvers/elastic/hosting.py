"""Jobs on servers on loan, as arrays for compiled code."""

from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from solvers.compiled import Ints
from solvers.elastic.lent import Lent


class Hosting(NamedTuple):
    """Jobs on servers. Servers are numbered in the order of their ids. A job's places, the servers on which
    it has workers, are numbered job by job; `server_places` lists them server by server."""

    job_starts: Ints
    """Index at which each job's places start, (jobs + 1,)."""
    place_job: Ints
    place_server: Ints
    place_workers: Ints
    """Workers that count towards the base demand, (places,)."""
    place_gpus: Ints
    server_starts: Ints
    """Index at which each server's places start in `server_places`, (servers + 1,)."""
    server_places: Ints
    spare: Ints
    """Workers beyond the base demand, (jobs,)."""
    hosts: Ints
    """Number of servers that host each job, with those that may not be reclaimed, (jobs,)."""
    elsewhere_gpus: Ints
    """GPUs on servers that may not be reclaimed, (jobs,)."""


def hosting_of(lent: Lent) -> tuple[Hosting, list[str]]:
    """Return the arrays, and the ids of the numbered servers.

    Raises:
        ValueError: a job has fewer workers than its base demand.
    """
    ids = sorted(server.server_id for server in lent.servers)
    number_of = {server_id: number for number, server_id in enumerate(ids)}
    everywhere = [job.all_workers() for job in lent.jobs]
    hosts = [len(workers) for workers in everywhere]
    # Servers that may not be reclaimed are -1.
    servers = list(map(number_of.get, chain.from_iterable(everywhere), repeat(-1)))
    workers = list(chain.from_iterable(each.values() for each in everywhere))
    counted = [
        count
        for job, each in zip(lent.jobs, everywhere, strict=True)
        for count in (map(job.workers.get, each, repeat(0)) if job.spare_workers else each.values())
    ]
    job_of = np.repeat(np.arange(len(hosts)), hosts)
    server_of, counts = np.array(servers, np.int64), np.array(counted, np.int64)
    gpus = (
        np.array(workers, np.int64) * np.array([job.gpus_per_worker for job in lent.jobs], np.int64)[job_of]
    )
    spare = _sums(counts, job_of, len(hosts)) - np.array([job.min_workers for job in lent.jobs], np.int64)
    if np.any(spare < 0):
        job = lent.jobs[int(np.argmax(spare < 0))]
        total = sum(job.workers.values())
        raise ValueError(f"job {job.job_id} has {total} workers, fewer than its base {job.min_workers}")
    here = server_of >= 0
    place_job, place_server = job_of[here], server_of[here]
    by_server = np.argsort(place_server, kind="stable")
    return Hosting(
        job_starts=np.searchsorted(place_job, np.arange(len(hosts) + 1)),
        place_job=place_job,
        place_server=place_server,
        place_workers=counts[here],
        place_gpus=gpus[here],
        server_starts=np.searchsorted(place_server[by_server], np.arange(len(ids) + 1)),
        server_places=by_server,
        spare=spare,
        hosts=np.array(hosts, np.int64),
        elsewhere_gpus=_sums(gpus[~here], job_of[~here], len(hosts)),
    ), ids


def _sums(values: Ints, job_of: Ints, jobs: int) -> Ints:
    """Return the sum of the values of each job, (jobs,)."""
    sums = np.zeros(jobs, np.int64)
    np.add.at(sums, job_of, values)
    return sums
