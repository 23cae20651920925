"""The times of requests to solvers, and of the application of their answers.

The plan of each interval is requested ahead of time, so that data loaders can be prepared before it is
applied. If GPUs are idle and jobs wait, another plan is requested in between, and applied at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.merging.estimates import EstimateProblem, EstimateSolution
from schemas.merging.settings import MergingPolicy
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.states import Stateful
from streams.policies.ignored import unknown_solve
from streams.policies.merging.allocation import TaskAllocation
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.questions import Questions
from streams.policies.merging.runs import MergingRuns
from streams.policies.policy import ZoneContext

_ESTIMATE_LIMIT_S = 30.0
_FEW_WAIT = 4
"""GPUs per waiting job from which on a plan is requested before the next interval."""
_LOST_AFTER_INTERVALS = 2
"""Intervals after the time limit of a request, after which its missing answer counts as lost."""


@dataclass(init=False, eq=False)
class Planning(Stateful):
    """Plans of one zone."""

    _next_s: float
    """Time at which the plan of the next interval is applied."""
    _requests: int
    _plan_request: str | None
    _asked_s: float
    """Time of the last request for a plan."""
    _plan_failed: bool
    """Whether a plan since then was lost or did not fit."""
    _due_s: float
    """Earliest time at which its answer is applied."""
    _ready_json: str | None
    """The answer that waits until then, see `hold`."""
    _estimate_request: str | None
    _estimated_s: float
    """Time of the last request for estimates."""
    _estimate_failed: bool
    """Whether that request was lost or failed."""

    def __init__(
        self, context: ZoneContext, runs: MergingRuns, questions: Questions, knowledge: Knowledge
    ) -> None:
        self._outcomes = context.outcomes
        self._runs = runs
        self._questions = questions
        self._knowledge = knowledge
        self._allocation = TaskAllocation(runs, questions, knowledge, context.outcomes)
        self._next_s = context.cell.epoch_s
        self._requests, self._plan_request, self._asked_s, self._due_s = 0, None, 0.0, 0.0
        self._plan_failed = False
        self._ready: SolveFinished | None = None
        self._ready_json = None
        self._estimate_request, self._estimated_s, self._estimate_failed = None, 0.0, False

    @property
    def _policy(self) -> MergingPolicy:
        return self._runs.policy

    def wake(self, time_s: float) -> None:
        """Apply a plan that is due, and request what is needed next."""
        self._give_up_waiting(time_s)
        if self._is_time_for_estimates(time_s):
            self._ask_for_estimates()
        interval_s = self._policy.interval_s
        if time_s >= self._next_s:
            ready = self._ready
            self.hold(None)
            self._next_s = (math.floor(time_s / interval_s) + 1) * interval_s
            if ready is not None:
                self._carry_out(ready)
            else:
                self._ask(time_s, is_early=False)
        elif self._is_idle_time(time_s):
            self._ask_in_between(time_s)
        elif time_s >= self._next_s - self._policy.prewarm_s and self._ready is None:
            self._ask(time_s, is_early=True)

    def solved(self, answer: SolveFinished) -> None:
        """Apply a solver's answer, or hold it until it is due."""
        if answer.request_id == self._estimate_request:
            self._estimate_request = None
            self._estimate_failed = not isinstance(answer.solution, EstimateSolution)
            if isinstance(answer.solution, EstimateSolution):
                self._runs.apply_estimates(answer.solution)
            if self._is_idle_time(self._runs.time_s):
                self._ask_in_between(self._runs.time_s)
        elif answer.request_id != self._plan_request:
            self._outcomes.add(unknown_solve(answer))
        elif self._runs.time_s < self._due_s and self._runs.jobs:
            self._plan_request = None
            self.hold(answer)
            self._allocation.prewarm(answer, self._next_s)
        else:
            self._plan_request = None
            self._carry_out(answer)

    def hold(self, answer: SolveFinished | None) -> None:
        """Keep an answer until it is applied, in place of any other; None drops it. Its size grows with the
        jobs."""
        before = self._ready_json or ""
        self._ready = answer
        self._ready_json = None if answer is None else answer.model_dump_json()
        self._runs.room.add(len(self._ready_json or "") - len(before))

    def describe(self) -> dict[str, Any]:
        """Describe plans and outstanding requests for an operator, in values that JSON has."""
        requests = (self._plan_request, self._estimate_request)
        return {
            "solver_requests": [request for request in requests if request is not None],
            "plan": {
                "next_s": self._next_s,
                "asked_s": self._asked_s,
                "due_s": self._due_s,
                "is_ready": self._ready is not None,
            },
        }

    def restore(self, state: Sequence[Any]) -> None:
        super().restore(state)
        ready, self._ready_json = self._ready_json, None
        self.hold(None if ready is None else SolveFinished.model_validate_json(ready))

    def _is_idle_time(self, time_s: float) -> bool:
        """Return whether to request a plan between intervals: GPUs are idle, or few jobs wait."""
        every_s = self._policy.idle_interval_s
        if every_s is None or self._plan_request is not None:
            return False
        if not self._runs.has_changed and not self._plan_failed:
            return False
        if self._estimate_request is not None:
            return False  # it may allow a merge, for which a job that has begun alone is too late
        if time_s - self._asked_s < every_s:
            return False
        waiting = len(self._runs.ready())
        used = sum(task.gpus for task in self._runs.all.values() if not self._questions.is_kept(task))
        return self._questions.available() > used or 0 < waiting <= self._runs.gpus.total // _FEW_WAIT

    def _is_time_for_estimates(self, time_s: float) -> bool:
        """Return whether to request estimates. After a failed request, this waits for an interval, since the
        next one would probably fail too."""
        if self._estimate_request is not None:
            return False
        if not self._estimate_failed:
            return self._knowledge.has_changed
        return time_s >= self._estimated_s + self._policy.interval_s

    def _carry_out(self, answer: SolveFinished) -> None:
        self._plan_failed |= not self._allocation.apply(answer, self._asked_s)

    def _ask_in_between(self, time_s: float) -> None:
        self.hold(None)
        self._ask(time_s, is_early=False)

    def _give_up_waiting(self, time_s: float) -> None:
        """Give up requests whose answers are lost."""
        long_ago_s = time_s - _LOST_AFTER_INTERVALS * self._policy.interval_s
        if self._plan_request is not None and self._asked_s + self._policy.solve_limit_s < long_ago_s:
            self._plan_request, self._plan_failed = None, True
        if self._estimate_request is not None and self._estimated_s + _ESTIMATE_LIMIT_S < long_ago_s:
            self._estimate_request, self._estimate_failed = None, True

    def _ask(self, time_s: float, is_early: bool) -> None:
        if self._plan_request is not None:
            return
        since_s = self._asked_s
        self._runs.note_assignment()
        self._plan_failed, self._asked_s = False, time_s
        problem = self._questions.problem(time_s)
        if problem is None:
            return
        self._requests += 1
        self._plan_request = f"plan-{self._requests}"
        self._due_s = self._next_s if is_early else time_s
        self._outcomes.add(
            SolveRequested.of(
                zone=self._runs.zone,
                request_id=self._plan_request,
                time_limit_s=self._policy.solve_limit_s,
                problem=problem,
                job_ids=self._questions.waiting_since(since_s, problem),
            )
        )

    def _ask_for_estimates(self) -> None:
        self._estimate_failed = False
        donors = {adapter.kind for adapter in self._runs.library.adapters}
        problem: EstimateProblem | None = self._knowledge.estimate(self._runs.jobs.values(), donors)
        if problem is None:
            return
        self._requests += 1
        self._estimate_request = f"estimate-{self._requests}"
        self._estimated_s = self._runs.time_s
        self._outcomes.add(
            SolveRequested.of(
                zone=self._runs.zone,
                request_id=self._estimate_request,
                time_limit_s=_ESTIMATE_LIMIT_S,
                problem=problem,
            )
        )
