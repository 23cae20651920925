"""Rigid gangs: jobs that take a fixed number of ranks, each with a GPU, on any nodes of their zone."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from schemas.facts import Facts
from streams.cell.nodes import NodeChange
from streams.policies.gang.gangs import R
from streams.policies.gang.generation import Gang
from streams.policies.gang.gpu_zone import GpuZone
from streams.policies.gang.single_job import SingleJobGangs
from streams.policies.gpus import Gpus
from streams.policies.policy import BrokenPromise, ZoneContext


@dataclass
class RigidGang(Gang):
    """A job with a fixed number of ranks. It begins its next generation once no node has ranks of the one
    before."""

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Number of its ranks."""

    @property
    def leaving_ranks(self) -> dict[str, int]:
        """Ranks that are to end, by node."""
        return {node: leaving.processes for node, leaving in self.leaving.items()}


S = TypeVar("S", bound=RigidGang)


class RigidGangs(SingleJobGangs[S, R]):
    """Rigid gangs of one zone, and its GPUs."""

    def __init__(self, context: ZoneContext) -> None:
        super().__init__(context)
        self.gpus = Gpus()
        self.sizes: Counter[int] = Counter()
        """Number of jobs by number of ranks; only sizes of at least one job."""

    @property
    def waiting(self) -> list[S]:
        """Jobs that can be given GPUs, in the order of their arrival."""
        elapsed_s = self.orders.elapsed_s
        return [job for job in self.jobs.values() if job.waits and job.retry_s <= elapsed_s]

    @property
    def reserved_gpus(self) -> int:
        """GPUs, idle or being released, that are kept for certain waiting jobs."""
        return 0

    def add(self, job: S) -> None:
        self.sizes[job.ranks] += 1
        self.gpus.hold(job.job_id, {**job.members, **job.leaving_ranks})
        super().add(job)

    def jobs_on(self, node: str) -> list[S]:
        # By arrival, the only order that a restored cell keeps.
        return sorted(map(self.jobs.__getitem__, self.gpus.holders(node)), key=attrgetter("arrival"))

    def broken_invariants(self) -> Iterator[str]:
        yield from super().broken_invariants()
        held: Counter[str] = Counter()
        for id, job in self.jobs.items():
            held.update(job.members)
            held.update(job.leaving_ranks)
            if job.members and sum(job.members.values()) != job.ranks:
                yield f"job {id} has {sum(job.members.values())} of {job.ranks} ranks"
            if job.members and job.leaving:
                yield f"job {id} has ranks while others are to end"
            for node in (*job.members, *job.leaving):
                if id not in self.gpus.holders(node):
                    yield f"job {id} has ranks on node {node}, and holds no GPUs there"
        for node, count in held.items():
            if count > self.gpus.nodes.get(node, 0):
                yield f"node {node} has {count} ranks on {self.gpus.nodes.get(node, 0)} GPUs"
        if self.gpus.used != held.total():
            yield f"{self.gpus.used} GPUs are held for {held.total()} ranks"

    def start(self, job: S) -> bool:
        """Start a waiting job on idle GPUs; return whether there are enough."""
        members = self.gpus.place(job.job_id, job.ranks, {})
        if members is None:
            return False
        self._begin_generation(job, job.generation + 1, members)
        why = self._why(job, "resumed" if job.generation > 1 else "started")
        self._outcomes.add(self._changed(job, 0, why))
        self._order_start(job)
        self.note(job)
        return True

    @abstractmethod
    def _order_start(self, job: S) -> None:
        """Add the decisions that carry out the start of a job: the orders to its members, and others before
        them."""

    def _release_node(self, job: S, node: str) -> None:
        self.gpus.give_back(job.job_id, (node,))

    def _release_ended(self, job: S) -> None:
        self.sizes -= Counter((job.ranks,))


class RigidZone(GpuZone[S, R]):
    """See `ZonePolicy`. Its jobs are rigid gangs, each of which fits on the zone's own nodes, since nodes on
    loan may be reclaimed."""

    _gangs: RigidGangs[S, R]

    def __init__(self, context: ZoneContext, gangs: RigidGangs[S, R], gang: Callable[..., S]) -> None:
        super().__init__(context, gangs, gang, gangs.gpus)

    def nodes_changed(self, change: NodeChange) -> None:
        super().nodes_changed(change)
        self._evict()

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        gpus = Gpus()
        gpus.configure(context.zone)
        room = sum(count for node, count in gpus.nodes.items() if node not in context.loans)
        too_large = [job for job in self._gangs.jobs.values() if job.ranks > room]
        if too_large:
            return {
                "case": "jobs_never_run",
                "jobs": len(too_large),
                "job_id": too_large[0].job_id,
                "ranks": too_large[0].ranks,
                "own_gpus": room,
            }
        small = self._too_small(gpus)
        if small is None:
            return None
        return {
            "case": "gpus_in_use",
            "node": small.node,
            "gpus": small.gpus,
            "held_gpus": small.held,
        }

    def _refusal(self, gang: S) -> tuple[str, Facts] | None:
        room = self._own_gpus - sum(self._own.get(node, 0) for node in self._leaving)
        facts: Facts = {"ranks": gang.ranks, "own_gpus": room}
        return ("larger_than_the_zone", facts) if gang.ranks > room else None

    def _needed(self, nodes: Iterable[str]) -> Iterator[str]:
        spare = self._own_gpus - max(self._gangs.sizes, default=0)
        for node in nodes:
            gpus = self._own.get(node, 0)
            if gpus > spare:
                yield node
            else:
                spare -= gpus

    def _evict(self) -> None:
        """Close nodes that are to leave, except those that jobs need, and preempt their jobs: at once if the
        node is due, otherwise if there is room elsewhere."""
        leaving = self._leaving
        needed = set(self._needed(leaving))
        for node in leaving:
            self._gpus.set_open(node, self._states.is_open(node, although_leaving=node in needed))
        for node, by_s in leaving.items():
            for job in self._gangs.jobs_on(node) if node not in needed else ():
                if job.members and (by_s is not None or self._fits_elsewhere(job)):
                    self._gangs.preempt(job, {"node": node})

    def _fits_elsewhere(self, job: S) -> bool:
        room = self._gpus.idle() + self._gpus.held_in_open(job.members)
        return room - self._gangs.reserved_gpus >= job.ranks

    def _configure(self, context: ZoneContext) -> None:
        super()._configure(context)
        self._own = {node: count for node, count in self._gpus.nodes.items() if node not in context.loans}
        """GPUs of nodes that are not on loan."""
        self._own_gpus = sum(self._own.values())
