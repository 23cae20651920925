"""Where the scenes of the demo play: a deployment of one cell, its log, and who sends events to it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from infra.demo.show import Show
from infra.deployment.deployment import Deployment, Layout
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from infra.log.reader import BoardFollower
from infra.log.target import Target
from infra.views.board import Board
from schemas.access import Role
from schemas.base import Event
from schemas.cells import CellConfigured, Zone
from schemas.codec import Decision, Envelope
from schemas.jobs import JobSubmitted
from schemas.kind import Terms, Workload

_POLL_S = 0.2
_OVER = object()
_PUBLISHERS: tuple[Role, ...] = ("users", "vendors", "inference")


class Scene(Protocol):
    """One of those that play at the same time."""

    def play(self) -> Iterator[None]:
        """Do what there is to do, and yield whenever there is something to wait for."""

    def note(self, records: Sequence[Envelope | Decision]) -> None:
        """Take in what has happened."""

    @property
    def shortcomings(self) -> list[str]:
        """What it was to show and did not."""


@dataclass
class Stage:
    """What scenes need."""

    deployment: Deployment
    follower: BoardFollower
    publishers: Mapping[Role, EventPublisher]
    show: Show

    @property
    def cell(self) -> CellConfigured:
        """The cell that it is of."""
        (cell,) = self.deployment.cells
        return cell

    @property
    def board(self) -> Board:
        """The cell as it stands."""
        return self.follower.boards[self.cell.cell]

    def zone(self, policy: str) -> Zone:
        """The zone of a policy."""
        return next(zone for zone in self.cell.zones if zone.policy.kind == policy)

    def send(self, event: Event, role: Role = "users") -> None:
        """Publish what one of a role has to say."""
        self.publishers[role].publish(event)

    def submit(self, zone: str, job_id: str, workload: Workload, terms: Terms) -> None:
        """Submit a job of the demo's user."""
        self.send(
            JobSubmitted(
                cell=self.cell.cell, zone=zone, user="demo", job_id=job_id, workload=workload, terms=terms
            )
        )

    def await_nodes(self, limit_s: float) -> None:
        """Return when every node is online.

        Raises:
            CommandError: one is not in time, or its executor cannot be kept running.
            ReadError: the log cannot be read.
        """
        deadline_s = time.monotonic() + limit_s
        self.follower.catch_up()
        while waiting := [node.node for node in self.board.nodes.by_id.values() if node.status != "up"]:
            if time.monotonic() > deadline_s:
                raise CommandError(f"not online within {limit_s:g} s: {', '.join(waiting)}")
            self._pass((), _POLL_S)

    def play(self, scenes: Sequence[Scene], deadline_s: float) -> None:
        """Play scenes beside each other until all are over, or until `deadline_s` of the monotonic clock.

        Raises:
            CommandError: a service cannot be kept running.
            PublishError: the broker does not take an event.
            ReadError: the log cannot be read.
        """
        playing = [scene.play() for scene in scenes]
        while time.monotonic() < deadline_s:
            playing = [each for each in playing if next(each, _OVER) is not _OVER]
            if not playing:
                return
            self._pass(scenes, _POLL_S)

    def drain(self, scenes: Sequence[Scene], quiet_s: float, deadline_s: float) -> None:
        """Take in what is still there: until nothing comes for `quiet_s`, or `deadline_s` has passed."""
        while self._pass(scenes, max(min(quiet_s, deadline_s - time.monotonic()), 0.0)):
            if time.monotonic() >= deadline_s:
                return

    def _pass(self, scenes: Sequence[Scene], timeout_s: float) -> bool:
        """Take in what has come; False if nothing has."""
        self.deployment.keep_running()
        records = self.follower.poll(timeout_s)
        for scene in scenes:
            scene.note(records)
        self.show.update(self.follower.boards.get(self.cell.cell), records)
        return bool(records)


@contextmanager
def running_stage(layout: Layout, targets: Mapping[Role, Target], show: Show) -> Iterator[Stage]:
    """A stage whose deployment runs for the length of the block.

    Raises:
        CommandError: a service does not come up.
        BrokerError: the topics are not what they must be.
    """
    deployment = Deployment(layout, show.say)
    with ExitStack() as stack:
        publishers = {
            role: stack.enter_context(EventPublisher(targets[role], "millrace/demo")) for role in _PUBLISHERS
        }
        stack.enter_context(deployment.running())
        follower = stack.enter_context(BoardFollower(targets["auditor"]))
        yield Stage(deployment, follower, publishers, show)
