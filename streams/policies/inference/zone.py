"""A zone whose servers serve inference under another system."""

from collections.abc import Iterator, Sequence
from typing import Any

from schemas.fleet import RunFailed, RunReport
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.policies.ignored import unknown_solve
from streams.policies.policy import BrokenPromise, ZoneContext, ZonePolicy


class InferenceZone(ZonePolicy):
    """See `ZonePolicy`: it has no jobs, so it needs no node and keeps no state."""

    def __init__(self, context: ZoneContext) -> None:
        self._outcomes = context.outcomes

    def submitted(self, job: Job) -> None:
        raise AssertionError(f"job {job.job_id}: the policy registers no workloads")

    def withdrawn(self, job: Job) -> None:
        raise AssertionError(f"job {job.job_id}: the policy registers no workloads")

    def run_changed(self, job: Job, report: RunReport) -> bool:  # noqa: ARG002
        raise AssertionError(f"job {job.job_id}: the policy registers no workloads")

    def run_refused(self, job: Job, failed: RunFailed) -> None:  # noqa: ARG002
        raise AssertionError(f"job {job.job_id}: the policy registers no workloads")

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:  # noqa: ARG002
        return None

    def reconfigured(self, context: ZoneContext) -> None:
        pass

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        return list(nodes)

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return servers[:count]

    def nodes_changed(self, change: NodeChange) -> None:
        pass

    def wake(self, time_s: float) -> None:
        pass

    def solved(self, answer: SolveFinished) -> None:
        self._outcomes.add(unknown_solve(answer))

    def broken_invariants(self) -> Iterator[str]:
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"jobs": {}}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""
