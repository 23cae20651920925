"""A recorded ledger under another configuration, beside what its cell decided."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import CommandError
from infra.simulation.from_ledger import LedgerSimulation, Step
from infra.simulation.outcomes import JobOutcome, Outcomes
from infra.simulation.recording import Recording
from infra.simulation.sent_times import timed
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted
from streams.cell import Cell, LedgerEvent
from streams.replay_files import read_ledger_file

_NO_JOB = JobOutcome()
_TIME_RESOLUTION_S = 0.001
"""Times of events are cut to it, so a report that is the ledger's last may be due so much later."""


@dataclass(frozen=True)
class JobDifference:
    """One job, three times."""

    bid: JobSubmitted
    before: JobOutcome
    simulated: JobOutcome
    after: JobOutcome

    @property
    def differs(self) -> bool:
        """Whether not all three are the same."""
        return not self.before == self.simulated == self.after


@dataclass(frozen=True)
class WhatIf:
    """What came of it."""

    before: Outcomes
    """What the ledger's cell decided, folded again."""
    simulated: Outcomes
    """The same simulated under the ledger's own configuration: the effect of simulating alone."""
    after: Outcomes
    """Simulated under the other configuration."""

    def jobs(self) -> Iterator[JobDifference]:
        """All jobs, in the order of their bids."""
        for job_id, bid in self.before.bids.items():
            columns = (self.before, self.simulated, self.after)
            yield JobDifference(bid, *(column.jobs.get(job_id, _NO_JOB) for column in columns))

    @property
    def simulation_is_exact(self) -> bool:
        """Whether simulating alone changes nothing, so that every difference comes of the change."""
        return self.before.jobs == self.simulated.jobs

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "simulation_is_exact": self.simulation_is_exact,
            "jobs": [_plain(job) for job in self.jobs()],
            "totals": {
                "before": self.before.totals(),
                "simulated": self.simulated.totals(),
                "after": self.after.totals(),
            },
        }


def ledger_configuration(path: Path, cell: str | None) -> CellConfigured:
    """The configuration that a ledger file begins with, of the cell that is wanted.

    Raises:
        ReplayError: the file is no ledger.
        CommandError: it configures no such cell.
    """
    for entry in read_ledger_file(path):
        event = entry.envelope.event
        if isinstance(event, CellConfigured) and cell in (None, event.cell):
            return event
    raise CommandError(f"{path}: the ledger configures no cell" + (f" {cell}" if cell else ""))


def recorded(path: Path, cell: str | None, own: CellConfigured) -> tuple[Recording, Outcomes]:
    """Fold a ledger as its cell did.

    Args:
        cell: as the user chose; None takes the only one.
        own: its configuration.

    Raises:
        ReplayError: the file is no ledger.
        CommandError: there are several cells, and none was chosen.
    """
    recording, before, folded = Recording(own), Outcomes(), Cell(own.cell)
    for time_s, entry in timed(events_of_cell(path, own.cell, others_allowed=cell is not None)):
        recording.take(time_s, entry)
        before.take(entry, folded.handle(entry))
    return recording, before


def what_if(
    path: Path,
    recording: Recording,
    before: Outcomes,
    alternative: CellConfigured,
    pace: float,
    on_step: Callable[[Step], None] = lambda _step: None,
    on_progress: Callable[[float], None] = lambda _part: None,
) -> WhatIf:
    """Simulate a ledger under its own and under another configuration, side by side.

    Args:
        recording, before: see `recorded`.
        on_step: is told every event and its decisions under the other configuration.
        on_progress: is told how much is over.

    Raises:
        ReplayError: the file is no ledger any more.
    """
    own = recording.configuration
    simulated, after = Outcomes(), Outcomes()
    as_it_was = LedgerSimulation(own, recording, pace)
    as_it_might_be = LedgerSimulation(alternative, recording, pace)

    def advance(steps: Iterator[Step], other_steps: Iterator[Step]) -> None:
        for step in steps:
            simulated.take(*step)
        for step in other_steps:
            after.take(*step)
            on_step(step)

    for number, (time_s, entry) in enumerate(
        timed(events_of_cell(path, own.cell, others_allowed=True)), start=1
    ):
        advance(as_it_was.feed(time_s, entry.envelope), as_it_might_be.feed(time_s, entry.envelope))
        on_progress(number / before.events)
    end_s = recording.end_s + _TIME_RESOLUTION_S
    advance(as_it_was.run_until(end_s), as_it_might_be.run_until(end_s))
    return WhatIf(before, simulated, after)


def events_of_cell(path: Path, cell: str, others_allowed: bool) -> Iterator[LedgerEvent]:
    """The events of one cell of a ledger file.

    Raises:
        ReplayError: the file is no ledger.
        CommandError: another cell has events too, and that is not allowed.
    """
    for entry in read_ledger_file(path):
        found = entry.envelope.event.cell
        if found == cell:
            yield entry
        elif not others_allowed:
            raise CommandError(
                f"{path}: the ledger has several cells, such as {cell} and {found}: choose with --cell"
            )


def _plain(job: JobDifference) -> dict[str, Any]:
    return {
        "job_id": job.bid.job_id,
        "user": job.bid.user,
        "zone": job.bid.task.zone,
        "bid_micros": job.bid.bid_micros,
        "differs": job.differs,
        "before": vars(job.before),
        "simulated": vars(job.simulated),
        "after": vars(job.after),
    }
