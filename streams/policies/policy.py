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
from streams.cell.loan import Loan
from streams.cell.nodes import NodeChange
from streams.cell.outcomes import Outcomes

BrokenPromise = Facts
"""Facts of a refusal for `breaks_a_promise`; a `case` among them."""


@dataclass(frozen=True)
class ZoneContext:
    """What a zone has of its cell."""

    cell: CellConfigured
    zone: Zone
    """Its settings are in `zone.policy`."""
    jobs: Mapping[str, Job]
    """The live jobs of the cell by id, those of other zones too."""
    live: LiveBytes
    """What the live jobs of all zones take in the cell's snapshot."""
    loans: Mapping[str, Loan]
    """The servers of the cell that are on loan, those lent to other zones too: one that serves this zone may
    have to be back `notice_s` from now."""
    outcomes: Outcomes
    """Decisions on the present event, to which the zone adds its own."""


class ZonePolicy(Protocol):
    """Decides for one zone. Every method is deterministic, takes no time but the cell's, and does no I/O.

    The cell has checked ids, owners, nodes and time before it asks.
    """

    def __init__(self, context: ZoneContext) -> None:
        """An empty zone."""

    def submitted(self, job: Job) -> None:
        """A new job, of a workload and on terms that the policy takes. Without a verdict it waits for one."""

    def withdrawn(self, job: Job) -> None:
        """The owner of a live job gives it up."""

    def quote(self, request: JobQuoteRequested) -> Outcome:
        """What a job would meet now, on terms that the policy quotes; changes nothing."""

    def run_changed(self, job: Job, report: RunReport) -> None:
        """A report about a run of a live job."""

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        """A node has refused the command to begin a run of a live job, which has failed there. Any node says
        so that was to have a part of the run, not only the one that reports for all."""

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        """Return a promise to admitted jobs that could not be kept if the zone were configured so. No nodes
        are missing but such as were `free_to_leave`."""

    def reconfigured(self, context: ZoneContext) -> None:
        """The zone is configured so from now on: nodes have joined it or left, or it has other settings. The
        jobs, and how nodes that stay were changed, are as they were; new nodes are up and open."""

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        """Those of its nodes, in this order, that may leave the zone together: none is needed by its jobs any
        more, even once those before it have left."""

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:
        """So many of these nodes, which are on loan to the zone, that it misses least if they have to be back
        by `due_s`, in the order in which it would give them back. Changes nothing: that they are to leave
        comes as a `NodeChange` of each."""

    def nodes_changed(self, change: NodeChange) -> None:
        """News of one of the zone's nodes."""

    def take(self, event: Event) -> None:
        """An event that the policy has registered for."""

    def wake(self, time_s: float) -> None:
        """It is `time_s` now."""

    def solved(self, answer: SolveFinished) -> None:
        """A solver's answer, to a request of this zone or to none."""

    def broken_invariants(self) -> Iterator[str]:
        """A line for each thing that should always hold of the zone and does not. It may take its time: it is
        asked in tests, and by workers that are told to look."""

    def describe(self) -> dict[str, Any]:
        """Describe the state for an operator, in values that JSON has: no tuples, and no number that is not
        finite. Computed only when somebody asks; changes nothing.

        Returns:
            `jobs`, by id, each with what `Job.describe` gives and a `state` in a word; the rest is the
            policy's own. Where the policy asks solvers, `solver_requests` has the ids that await an answer.
        """

    def state(self) -> dict[str, Any]:
        """Everything that the decisions to come depend on, of types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of an equally configured zone; the context has the live jobs by now."""
