"""Errors put on what the task merger is told, to see what they cost (Ymir, Figures 8 and 13).

The zone and its solver are those of production. Between them, a question about an allocation is changed on
its way to the solver: what is foretold of gains, iterations and steps is off by factors that are drawn once
for each kind of jobs, or pair of kinds, as an estimator's errors are.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.merging.kinds import Kind, kinds_of, listed
from schemas.codec import Decision
from schemas.jobs import JobSubmitted
from schemas.merging.problems import MergeProblem, Transfer, Unit
from schemas.merging.workload import TuningWorkload
from schemas.solves import SolveRequested
from solvers.merging.step_times import faster_only
from streams.cell.cell import Cell, LedgerEvent

_LEAST_FACTOR = 0.05
"""Noise beyond 100 % would make times negative."""
_LEAST_RATIO = 0.02

Fold = Callable[[Cell, LedgerEvent], list[Decision]]


@dataclass(frozen=True)
class Noise:
    """Scales of uniform noise: with 0.4, a value is multiplied by something from 0.6 to 1.4."""

    gains: float = 0.0
    """On the part of its iterations that a merge is foretold to save."""
    iterations: float = 0.0
    """On those that are left of a job."""
    steps: float = 0.0
    """On the time of a step with each number of GPUs."""
    seed: int = 0

    @property
    def is_any(self) -> bool:
        """Whether anything is changed."""
        return bool(self.gains or self.iterations or self.steps)

    def on(self, problem: MergeProblem, names: Sequence[str]) -> MergeProblem:
        """The problem as it is told.

        Args:
            names: of its kinds: what is drawn depends on them, not on their places.
        """
        return problem.model_copy(
            update={
                **listed(self._kind(kind, name) for kind, name in zip(kinds_of(problem), names, strict=True)),
                "units": tuple(self._unit(unit, names[unit.kind]) for unit in problem.units),
                "transfers": tuple(self._transfer(one, names) for one in problem.transfers),
            }
        )

    def _factor(self, scale: float, *of: object) -> float:
        """The same for the same names."""
        draw = random.Random("/".join(map(str, (self.seed, *of)))).uniform(-1.0, 1.0)
        return max(1.0 + scale * draw, _LEAST_FACTOR)

    def _kind(self, kind: Kind, name: str) -> Kind:
        if not self.steps:
            return kind
        told = (
            (step.gpus, step.step_s * self._factor(self.steps, "steps", name, step.gpus))
            for step in kind.steps
        )
        return kind._replace(steps=faster_only(told))

    def _unit(self, unit: Unit, name: str) -> Unit:
        if not self.iterations:
            return unit
        factor = self._factor(self.iterations, "iterations", name)
        return unit.model_copy(update={"iterations": unit.iterations * factor})

    def _transfer(self, transfer: Transfer, names: Sequence[str]) -> Transfer:
        if not self.gains:
            return transfer
        donor, receiver = names[transfer.donor], names[transfer.receiver]

        def told(ratio: float, giver: str, taker: str) -> float:
            factor = self._factor(self.gains, "gains", transfer.mode, giver, taker)
            return max(1.0 - (1.0 - ratio) * factor, _LEAST_RATIO)

        update = {"receiver_ratio": told(transfer.receiver_ratio, donor, receiver)}
        if transfer.mode == "spatial":
            update["donor_ratio"] = told(transfer.donor_ratio, receiver, donor)
        return transfer.model_copy(update=update)


NO_NOISE = Noise()


def linear_steps(problem: MergeProblem) -> MergeProblem:
    """The problem as it is told where steps are taken to be a times as fast on a GPUs: the assumption of
    throughput models in place of the lookup table (section 7.4, Table 6)."""
    return problem.model_copy(update=listed(map(_linear, kinds_of(problem))))


def _linear(kind: Kind) -> Kind:
    fewest = kind.steps[0]
    return kind._replace(
        steps=faster_only((step.gpus, fewest.step_s * fewest.gpus / step.gpus) for step in kind.steps)
    )


def told(change: Callable[[MergeProblem, Sequence[str]], MergeProblem]) -> Fold:
    """A fold after which solvers are asked changed problems, whatever the cell asks.

    Args:
        change: of a problem and the names of its kinds.
    """
    names: dict[str, str] = {}

    def of(decision: Decision) -> Decision:
        request = decision.outcome
        if not isinstance(request, SolveRequested) or not isinstance(request.problem, MergeProblem):
            return decision
        of_kinds = [""] * len(request.problem.kinds)
        for unit in request.problem.units:
            of_kinds[unit.kind] = "+".join(names[job_id] for job_id in unit.job_ids)
        changed = change(request.problem, of_kinds)
        return replace(decision, outcome=request.about(changed))

    def fold(cell: Cell, entry: LedgerEvent) -> list[Decision]:
        event = entry.envelope.event
        if isinstance(event, JobSubmitted) and isinstance(event.workload, TuningWorkload):
            names[event.job_id] = _name(event.workload)
        return [of(decision) for decision in cell.handle(entry)]

    return fold


def _name(workload: TuningWorkload) -> str:
    hyperparameters = workload.hyperparameters.model_dump_json(exclude={"seed"})
    return f"{workload.dataset.path}/{hyperparameters}/{workload.target.accuracy}"
