"""Where a scene of the demo plays: a deployment of one cell, its log, and who submits jobs to it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from infra.demo.market import Show
from infra.deployment.deployment import Deployment, Layout
from infra.log.publisher import EventPublisher
from infra.log.reader import BoardFollower
from infra.log.target import Target
from schemas.access import Role
from schemas.cells import CellConfigured
from schemas.codec import Decision, Envelope
from schemas.jobs import JobSubmitted
from schemas.kind import Terms, Workload

_POLL_S = 0.2

Note = Callable[[Sequence[Envelope | Decision]], None]


@dataclass
class Stage:
    """What a scene needs."""

    deployment: Deployment
    follower: BoardFollower
    users: EventPublisher
    show: Show

    @property
    def cell(self) -> CellConfigured:
        """The cell that it is of."""
        (cell,) = self.deployment.cells
        return cell

    def submit(self, zone: str, job_id: str, workload: Workload, terms: Terms) -> None:
        """Submit a job of the demo's user."""
        self.users.publish(
            JobSubmitted(
                cell=self.cell.cell, zone=zone, user="demo", job_id=job_id, workload=workload, terms=terms
            )
        )

    def until(self, condition: Callable[[], bool], note: Note, deadline_s: float) -> bool:
        """Take in what happens until something is so; False if it is not in time.

        Args:
            note: is given what has happened.
            deadline_s: by the monotonic clock.

        Raises:
            CommandError: a service cannot be kept running.
            ReadError: the log cannot be read.
        """
        while not condition():
            if time.monotonic() >= deadline_s:
                return False
            self.deployment.keep_running()
            records = self.follower.poll(_POLL_S)
            note(records)
            self.show.update(self.follower.boards.get(self.cell.cell), records)
        return True


@contextmanager
def running_stage(layout: Layout, targets: Mapping[Role, Target], show: Show) -> Iterator[Stage]:
    """A stage whose deployment runs for the length of the block.

    Raises:
        CommandError: a service does not come up.
        BrokerError: the topics are not what they must be.
    """
    deployment = Deployment(layout, show.say)
    with (
        EventPublisher(targets["users"], "millrace/demo") as users,
        deployment.running(),
        BoardFollower(targets["auditor"]) as follower,
    ):
        yield Stage(deployment, follower, users, show)
