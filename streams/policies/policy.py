"""The interface between a cell and the policy that runs one of its zones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.base import Event, Outcome
from schemas.cells import CellConfigured, Zone
from schemas.facts import Facts
from schemas.fleet import RunFailed, RunReport
from schemas.jobs import JobQuoteRequested
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.live_bytes import LiveBytes
from streams.cell.node_record import Loan
from streams.cell.nodes import NodeChange, NodeStates
from streams.cell.outcomes import OutcomeSink
from streams.cell.profiles import ZoneProfiles

BrokenPromise = Facts
"""Facts of a refusal for `breaks_a_promise`, with a `case`."""


@dataclass(frozen=True)
class ZoneContext:
    """Access of a zone to its cell."""

    cell: CellConfigured
    zone: Zone
    """The zone; its settings are in `zone.policy`."""
    jobs: Mapping[str, Job]
    """Live jobs of the cell by id, those of other zones included."""
    live: LiveBytes
    """Bytes of the live jobs of all zones in the cell's snapshot."""
    loans: Mapping[str, Loan]
    """Servers of the cell on loan, those lent to other zones included. A server that serves this zone may be
    due `notice_s` from now."""
    nodes: NodeStates
    """Present states of the cell's nodes."""
    outcomes: OutcomeSink
    """Decisions on the present event, to which the zone adds its own."""
    profiles: ZoneProfiles
    """Measured steps of kinds of jobs in this zone: runs of the zone add to them, and profilers."""


class ZonePolicy(Protocol):
    """Policy that decides for one zone.

    Every method is deterministic, uses no time but the cell's, and does no I/O. The cell has checked ids,
    owners, nodes and time before each call. A policy without quotes, or without events of its own, derives
    from it.
    """

    def __init__(self, context: ZoneContext) -> None:
        """Begin with an empty zone."""

    def submitted(self, job: Job) -> None:
        """Admit or reject a new job, of the policy's workloads and terms; without a verdict, it waits for
        one."""

    def withdrawn(self, job: Job) -> None:
        """Apply the withdrawal of a live job by its user."""

    def quote(self, request: JobQuoteRequested) -> Outcome:
        """Return the present offer for a job, on terms that the policy quotes. It changes nothing."""
        raise AssertionError(f"quote {request.quote_id}: the policy registers no terms to quote on")

    def run_changed(self, job: Job, report: RunReport) -> bool:
        """Apply a report about a run of a live job.

        Returns:
            whether the zone has that run. If not, and the run continues, the cell orders its node to end it.
        """

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        """Apply the refusal of a node to begin a run of a live job, which has failed there. Each node that
        was to have a part of the run reports it, not only the leader."""

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        """Return a promise to admitted jobs that a new configuration of the zone would break. The only nodes
        missing in it are some that were `free_to_leave`."""

    def reconfigured(self, context: ZoneContext) -> None:
        """Apply a new configuration: nodes have joined or left, or the settings have changed. Jobs and the
        states of nodes that stay are unchanged; new nodes are up and open."""

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        """Return the nodes that may leave the zone together, in the given order: jobs need none of them, even
        after those before it have left."""

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:
        """Return `count` of the servers on loan to the zone, to be returned by `due_s`: those that it can
        spare best, in the order of their return. It changes nothing: a `NodeChange` of each server
        follows."""

    def nodes_changed(self, change: NodeChange) -> None:
        """Apply a change of the state of one of the zone's nodes."""

    def apply(self, event: Event) -> None:
        """Apply an event of a type that the policy has registered, besides reports of runs."""
        raise AssertionError(f"{event.TYPE}: the policy registers no events of its own")

    def wake(self, time_s: float) -> None:
        """Apply a tick of the cell's clock."""

    def solved(self, answer: SolveFinished) -> None:
        """Apply a solver's answer, to a request of this zone or to none."""

    def broken_invariants(self) -> Iterator[str]:
        """Yield a line for each broken invariant. It may be slow: only tests call it, and workers with
        `MILLRACE_VALIDATE`."""

    def describe(self) -> dict[str, Any]:
        """Describe the state for an operator, in values that JSON has: no tuples, and no number that is not
        finite. Computed only on request; changes nothing.

        Returns:
            `jobs`, by id, each with what `Job.describe` gives and a `state` in a word; the rest is the
            policy's own. Where the policy asks solvers, `solver_requests` has the ids that await an answer.
        """

    def state(self) -> dict[str, Any]:
        """Return everything that future decisions depend on, in types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state of an equally configured zone. The context already has the live jobs."""
