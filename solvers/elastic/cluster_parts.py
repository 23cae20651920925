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
    """What was placed and taken away since a trial began."""

    steps: list[tuple[Server, str, Kind, Part, int]] = field(default_factory=list)
    """Server, job, kind, part, and how many real workers came; below 0 where they went."""
    orders: dict[str, dict[Kind, list[str]]] = field(default_factory=dict)
    """The servers of each job that was touched, in their order when the trial began."""

    def note(self, server: Server, job_id: str, kind: Kind, parts: dict[Kind, Part], count: int) -> None:
        """Workers of a job come, or go."""
        if job_id not in self.orders:
            self.orders[job_id] = {each: list(part.workers) for each, part in parts.items() if part.workers}
        self.steps.append((server, job_id, kind, parts[kind], count))


def emptied_first(server: Server) -> tuple[bool, bool, int, str]:
    """Sorts servers into the order in which they lose flexible workers that are no longer granted."""
    return (server.is_open, server.firm_gpus > 0, server.gpus - server.free, server.server_id)


def made_firm_first(server: Server) -> tuple[bool, int, str]:
    """Sorts servers into the order in which flexible workers on them become base ones."""
    return (server.firm_gpus == 0, server.free - server.gpus, server.server_id)


def class_of(part: Part) -> tuple[Pool, int]:
    """Where its servers are, and how fast."""
    return (part.pool, part.workers_per_worker)
