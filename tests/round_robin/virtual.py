"""A stand-in for counting nodes in simulations."""

import math
from collections.abc import Iterator

from schemas.base import Event
from schemas.commands import Command
from schemas.fleet import RunFinished, RunStarted
from tests.support.counting_commands import CountOrdered

SAMPLES_PER_S = 1.0


class VirtualCounting:
    """See `VirtualRunner`."""

    def __init__(self, cell: str, pace: float) -> None:
        self._cell = cell
        self._samples_per_s = pace * SAMPLES_PER_S

    def carry_out(
        self, command: Command, time_s: float, until_s: float = math.inf
    ) -> Iterator[tuple[float, Event]]:
        if not isinstance(command, CountOrdered):
            return
        run = {"cell": self._cell, "node": command.node, "run_id": command.run_id, "job_id": command.job_id}
        yield time_s, RunStarted(**run, samples_done=command.start)
        end_s = time_s + (command.goal - command.start) / self._samples_per_s
        if end_s <= until_s:
            yield end_s, RunFinished(**run, samples_done=command.goal)
