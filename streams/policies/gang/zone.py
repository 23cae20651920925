"""The base of zones whose jobs are gangs.

A zone derives from it and decides which jobs it admits, and on a tick which processes they get. What follows
from withdrawals, reports, lost nodes and silence is the same under every policy.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, cast

from schemas.cells import Node
from schemas.facts import Facts
from schemas.fleet import RunFailed, RunReport
from schemas.kind import Evidence
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.cell.states import from_state, state_of
from streams.policies.gang.gangs import G, Gangs, R
from streams.policies.ignored import unknown_solve
from streams.policies.policy import ZoneContext, ZonePolicy


class _GangSettings(Protocol):
    """Settings of a policy of gangs."""

    @property
    def order_timeout_s(self) -> float: ...


class GangZone(ZonePolicy, Generic[G, R]):
    """See `ZonePolicy`. By default it has no quotes, no solver and no events of its own."""

    def __init__(self, context: ZoneContext, gangs: Gangs[G, R], gang: Callable[..., G]) -> None:
        """Begin with an empty zone. The policy applies the configuration (`_configure`) once its own parts
        are there.

        Args:
            gang: the class of the gangs.
        """
        self._gangs, self._gang = gangs, gang
        self._jobs, self._outcomes, self._states = context.jobs, context.outcomes, context.nodes
        self._nodes: dict[str, Node] = {}
        """Configured nodes by id."""

    def submitted(self, job: Job) -> None:
        gang = self._gang_of(job)
        refusal = self._refusal(gang)
        if refusal is None and (full := self._gangs.room.refuse(gang)) is not None:
            refusal = "cell_full", full
        if refusal is not None:
            self._outcomes.add(gang.rejected(self._zone.id, *refusal))
            return
        self._gangs.arrivals += 1
        self._outcomes.add(gang.admitted(self._zone.id, self._admit(gang)))
        self._gangs.add(gang)

    def withdrawn(self, job: Job) -> None:
        self._gangs.withdraw(self._gangs.jobs[job.job_id])

    def run_changed(self, job: Job, report: RunReport) -> bool:
        return self._gangs.report(self._gangs.jobs[job.job_id], report)

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self._gangs.refuse(self._gangs.jobs[job.job_id], failed)

    def nodes_changed(self, change: NodeChange) -> None:
        self._gangs.note_nodes()
        if change.status in ("down", "restarted"):
            self._gangs.lose_node(change)

    def reconfigured(self, context: ZoneContext) -> None:
        # A node that has joined may be down: its change follows, so nothing begins before the next tick.
        self._configure(context)
        self._gangs.note_nodes()

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        idle = [node for node in nodes if not self._gangs.is_busy(node)]
        needed = set(self._needed(idle))
        return [node for node in idle if node not in needed]

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return sorted(servers, key=lambda node: (len(self._gangs.jobs_on(node)), node))[:count]

    def wake(self, time_s: float) -> None:
        if self._gangs.orders.advance(time_s):
            self._give_up_silent()

    def solved(self, answer: SolveFinished) -> None:
        self._outcomes.add(unknown_solve(answer))

    def broken_invariants(self) -> Iterator[str]:
        live = [job.job_id for job in self._jobs.values() if job.zone == self._zone.id]
        if sorted(live) != sorted(self._gangs.jobs):
            yield f"the zone keeps {len(self._gangs.jobs)} jobs, and {len(live)} of its jobs are live"
        yield from self._gangs.broken_invariants()

    def describe(self) -> dict[str, Any]:
        return {**self._gangs.describe(), "leaving": self._leaving}

    def state(self) -> dict[str, Any]:
        return {
            "jobs": [self._state_of(gang) for gang in self._gangs.jobs.values()],
            "arrivals": self._gangs.arrivals,
            "orders": self._gangs.orders.state(),
            "has_changed": self._gangs.has_changed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._gangs.arrivals = state["arrivals"]
        self._gangs.orders.restore(state["orders"])
        for packed in state["jobs"]:
            self._gangs.add(self._restored(packed))
        self._gangs.has_changed = state["has_changed"]

    def _gang_of(self, job: Job) -> G:
        """Return the gang of a submitted job."""
        return self._gang(job, self._gangs.arrivals)

    def _state_of(self, gang: G) -> Any:
        """Return the state of a gang, in types that msgpack writes."""
        return state_of(gang)

    def _restored(self, state: Any) -> G:
        """Return the gang with a state."""
        return from_state(self._gang, state, self._jobs)

    @abstractmethod
    def _refusal(self, gang: G) -> tuple[str, Facts] | None:
        """Return the reason and the facts for which a submitted job is rejected; None if it is admitted,
        provided that the cell has room for it."""

    @abstractmethod
    def _admit(self, gang: G) -> Evidence:
        """Return the evidence of the admission of a job, which is not yet among the gangs."""

    @abstractmethod
    def _needed(self, nodes: Iterable[str]) -> Iterable[str]:
        """Yield those of some nodes without which a job could never run. They are checked in the given order:
        a node that is not needed counts as gone for the next."""

    def _give_up_silent(self) -> None:
        """Count silent runs as failed, some ten times per timeout."""
        self._gangs.give_up_silent()

    @property
    def _leaving(self) -> dict[str, float | None]:
        """Nodes that are to leave, with the times by which they are due (s); None for a node that leaves
        whenever it is free."""
        return self._states.due_to_leave(self._nodes)

    def _configure(self, context: ZoneContext) -> None:
        """Apply a configuration: the nodes and the settings."""
        self._zone, self._loans = context.zone, context.loans
        self._nodes = {node.id: node for node in context.zone.nodes}
        settings = cast(_GangSettings, context.zone.policy)
        self._gangs.orders.timeout_s = settings.order_timeout_s
