"""Gains between tasks of a merging zone: the forecast of each pair of tasks, and the results of merges."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.base import Event, Outcome
from schemas.jobs import JobSubmitted
from schemas.merging.estimates import EstimateSolution, MergeMode
from schemas.merging.outcomes import MergeEvaluated
from schemas.merging.workload import TuningWorkload
from schemas.solves import SolveFinished

_MODES: tuple[MergeMode, ...] = ("temporal", "spatial")
"""Modes in the order in which they are shown."""

Pair = tuple[MergeMode, str, str]
"""Mode, donor and receiver. Both tasks of a spatial merge are each other's donor."""


@dataclass
class Transfer:
    """Gain of one task by another, from the records of their jobs."""

    mode: MergeMode
    donor: str
    """Path of its training data."""
    receiver: str
    forecast: float | None = None
    """Latest forecast gain of the receiver's accuracy (G, Eq. 1), the mean over kinds of jobs."""
    gains: list[float] = field(default_factory=list)
    """Known gains of merges that were not undone."""
    merges: int = 0
    """Number of merges that have ended for the receiver, in any way."""
    undone: int = 0
    saved_s: float = 0.0
    """Time with one GPU that they saved."""

    @property
    def gain(self) -> float | None:
        """Mean gain; None where all are unknown."""
        return math.fsum(self.gains) / len(self.gains) if self.gains else None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "mode": self.mode,
            "donor": self.donor,
            "receiver": self.receiver,
            "foretold_gain": self.forecast,
            "gain": self.gain,
            "merges": self.merges,
            "undone": self.undone,
            "saved_s": self.saved_s,
        }


class Transfers:
    """Folds the events and decisions about one zone, each in their order; the log has no common order.

    Args:
        zone: Id of the zone.
        task_of: Function to the name of a job's task in estimates.
    """

    def __init__(self, zone: str, task_of: Callable[[TuningWorkload], str]) -> None:
        self._zone = zone
        self._task_of = task_of
        self._tasks: dict[str, TuningWorkload] = {}
        """Workload of the first job of each task."""
        self._task_of_job: dict[str, str] = {}
        self._forecasts: dict[Pair, tuple[int, float]] = {}
        """Number of the request, and gain."""
        self._evaluations: list[MergeEvaluated] = []

    def fold_event(self, event: Event) -> None:
        """Fold a ledger event."""
        match event:
            case JobSubmitted(zone=self._zone, workload=TuningWorkload() as workload):
                task = self._task_of(workload)
                self._tasks.setdefault(task, workload)
                self._task_of_job.setdefault(event.job_id, task)
            case SolveFinished(zone=self._zone, solution=EstimateSolution() as solution):
                self._note(event.request_id, solution)

    def fold_decision(self, outcome: Outcome) -> None:
        match outcome:
            case MergeEvaluated(zone=self._zone):
                self._evaluations.append(outcome)

    def found(self) -> list[Transfer]:
        """Return all pairs with a forecast or a merge, by mode and by the names of the tasks."""
        names = self._names()
        found: dict[Pair, Transfer] = {}

        def at(mode: MergeMode, donor: str, receiver: str) -> Transfer:
            pair = mode, names.get(donor, donor), names.get(receiver, receiver)
            return found.setdefault(pair, Transfer(*pair))

        for (mode, donor, receiver), (_, gain) in self._forecasts.items():
            at(mode, donor, receiver).forecast = gain
        for record in self._evaluations:
            tasks = [self._task_of_job.get(job_id) for job_id in (record.partner, record.job_id)]
            if tasks[0] is None or tasks[1] is None:
                continue
            transfer = at(record.mode, tasks[0], tasks[1])
            transfer.merges += 1
            transfer.undone += record.reason == "undone"
            transfer.saved_s += record.saved_s
            if record.reason == "finished" and record.gain is not None:
                transfer.gains.append(record.gain)
        return [found[pair] for pair in sorted(found, key=lambda pair: (_MODES.index(pair[0]), *pair[1:]))]

    def _note(self, request_id: str, solution: EstimateSolution) -> None:
        place = int(request_id.rpartition("-")[2]) if request_id.rpartition("-")[2].isdecimal() else 0
        gains: dict[Pair, list[float]] = {}
        tasks = [kind.task for kind in solution.kinds]
        for record in solution.transfers:
            if max(record.donor, record.receiver) >= len(tasks):
                continue  # the zone ignores it too
            donor, receiver = tasks[record.donor], tasks[record.receiver]
            if donor is None or receiver is None:
                continue
            gains.setdefault((record.mode, donor, receiver), []).append(record.receiver_gain)
            if record.mode == "spatial":
                gains.setdefault((record.mode, receiver, donor), []).append(record.donor_gain)
        for pair, values in gains.items():
            if self._forecasts.get(pair, (-1, 0.0))[0] <= place:
                self._forecasts[pair] = place, math.fsum(values) / len(values)

    def _names(self) -> dict[str, str]:
        """Return the path of each task's training data, with its validation data if not unique."""
        paths = Counter(workload.dataset.path for workload in self._tasks.values())
        return {
            task: workload.dataset.path
            if paths[workload.dataset.path] == 1
            else f"{workload.dataset.path} (validated on {workload.validation_path or 'nothing'})"
            for task, workload in self._tasks.items()
        }


def tasks_in(transfers: Sequence[Transfer]) -> list[str]:
    """Return all donors and receivers: those with the most merges first, then by name."""
    merges: Counter[str] = Counter()
    for transfer in transfers:
        merges[transfer.donor] += transfer.merges
        merges[transfer.receiver] += transfer.merges
    return sorted(merges, key=lambda name: (-merges[name], name))
