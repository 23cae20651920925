"""A second runner: it counts to a number, a step at a time, and keeps the count in the node's journal."""

from pydantic import JsonValue

from executors.node.runner import Activity, CloseReason, Objection, RunnerContext
from schemas.commands import Command
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from tests.support.counting_commands import CountCancelled, CountOrdered

LARGEST_COUNT = 10**6


class CountingRunner:
    """See `Runner`."""

    def __init__(self, context: RunnerContext) -> None:
        self._cell = context.settings.cell
        self._report = context.report
        self._order: CountOrdered | None = None
        self._count = 0
        self._is_reported = False
        """Whether this process has reported the run's start."""

    def validate(self, command: Command) -> Objection | None:
        if isinstance(command, CountOrdered) and command.goal > LARGEST_COUNT:
            return Objection("impossible", f"nobody counts to {command.goal}")
        if isinstance(command, CountOrdered) and command.goal == 0:
            return Objection("out_of_date", "it is counted already")
        return None

    def apply(self, command: Command) -> None:
        match command:
            case CountOrdered(fails_at=0):
                raise RuntimeError("cannot count")
            case CountOrdered():
                self._order, self._count, self._is_reported = command, command.start, False
            case CountCancelled() if self._order is not None and self._order.job_id == command.job_id:
                self._order = None

    def disown(self, run_id: str, job_id: str) -> None:
        order = self._order
        if order is not None and (order.run_id, order.job_id) == (run_id, job_id):
            self._progressed(order, complete=True)
            self._order = None

    def held_runs(self) -> list[str]:
        return [] if self._order is None else [self._order.run_id]

    def advance(self) -> Activity:
        order = self._order
        if order is None:
            return "idle"
        if not self._is_reported:
            self._is_reported = True
            self._report(RunStarted(**self._place(order), samples_done=self._count))
        self._count += 1
        if self._count == order.fails_at:
            raise RuntimeError(f"cannot count to {self._count}")
        if self._count < order.goal:
            self._progressed(order, complete=False)
            return "working"
        self._order = None
        self._report(RunFinished(**self._place(order), samples_done=order.goal))
        return "idle"

    def close(self, reason: CloseReason) -> None:
        if self._order is not None:
            self._progressed(self._order, complete=True)
            self._order = None

    def state(self) -> JsonValue:
        if self._order is None:
            return None
        return {"order": self._order.model_dump(mode="json"), "count": self._count}

    def restore(self, state: JsonValue) -> None:
        if not isinstance(state, dict) or not isinstance(state.get("count"), int):
            raise ValueError("no count")
        self._order, self._count = CountOrdered.model_validate(state["order"]), state["count"]

    def _progressed(self, order: CountOrdered, complete: bool) -> None:
        self._report(
            RunProgressed(**self._place(order), samples_done=self._count, node_s=0.0, complete=complete)
        )

    def _place(self, order: CountOrdered) -> dict[str, str]:
        return {"cell": self._cell, "node": order.node, "run_id": order.run_id, "job_id": order.job_id}


class Counting:
    """See `RunnerKind`."""

    commands = (CountOrdered, CountCancelled)

    def load(self, context: RunnerContext) -> CountingRunner:
        return CountingRunner(context)
