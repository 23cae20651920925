"""What a cluster keeps of each server and of each part of a job."""

from dataclasses import dataclass, field
from typing import Literal

from solvers.elastic.demand import Pool
from solvers.elastic.server_class import Group, ServerClass

Kind = Literal["base", "flexible", "inelastic"]
"""Of workers: a job's base demand, what an elastic job has beyond it, and all of an inelastic job."""


@dataclass(slots=True)
class Server:
    """One of a cluster's, and what is there."""

    server_id: str
    pool: Pool
    gpus: int
    workers_per_worker: int
    peers: ServerClass
    """The open servers that are as fast, this one among them if it is open."""
    free: int
    group: Group = "empty"
    """In which it is counted there."""
    firm_gpus: int = 0
    """Of workers that are not flexible."""
    is_open: bool = True
    parts: dict[str, int] = field(default_factory=dict)
    """How many kinds of workers of each job are here."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody has workers here."""
        return not self.parts

    @property
    def jobs(self) -> list[str]:
        """Jobs that have workers here, by id."""
        return sorted(self.parts)


@dataclass(slots=True)
class Part:
    """Workers of a job of one kind, all in one class."""

    pool: Pool
    workers_per_worker: int
    gpus_per_worker: int
    workers: dict[str, int] = field(default_factory=dict)
    """Real ones, by server."""


@dataclass(slots=True)
class Trial:
    """How servers and jobs were before a trial touched them."""

    servers: dict[str, tuple[int, int, dict[str, int]]] = field(default_factory=dict)
    """By id: free GPUs, firm GPUs, and what is there."""
    jobs: dict[str, list[tuple[Kind, Part, dict[str, int]]]] = field(default_factory=dict)
    """By id: its parts, each with its workers."""

    def keep(self, server: Server, job_id: str, parts: dict[Kind, Part]) -> None:
        """Remember both, unless they are touched already: workers are about to come or go."""
        if server.server_id not in self.servers:
            self.servers[server.server_id] = (server.free, server.firm_gpus, server.parts.copy())
        if job_id not in self.jobs:
            self.jobs[job_id] = [
                (kind, part, part.workers.copy()) for kind, part in parts.items() if part.workers
            ]


def emptied_first(server: Server) -> tuple[bool, bool, int, str]:
    """Sorts servers into the order in which they lose flexible workers that are no longer granted."""
    return (server.is_open, server.firm_gpus > 0, server.gpus - server.free, server.server_id)


def class_of(part: Part) -> tuple[Pool, int]:
    """Where its servers are, and how fast."""
    return (part.pool, part.workers_per_worker)


def may_stand_in(flexible: Part, base: Part) -> bool:
    """Whether flexible workers on training servers are as fast as base ones on loaned servers."""
    pools = flexible.pool, base.pool
    return pools == ("training", "loaned") and flexible.workers_per_worker == base.workers_per_worker
