"""Where the scenes of the demo play: a deployment of one cell, its log, and who sends events to it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from infra.deployment.deployment import Deployment, Layout
from infra.deployment.fork_server import ForkServer
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from infra.log.reader import BoardFollower
from infra.log.target import Target
from infra.progress import Progress
from infra.views.board import Board
from infra.views.sentences import sentence
from infra.views.text import first_of
from infra.views.words import happening
from schemas.base import Event, ZoneView
from schemas.cells import CellConfigured, Zone
from schemas.codec import Decision, Envelope
from schemas.commands import Command
from schemas.decisions import JobCompleted, JobOutcome, JobRefunded, JobRejected
from schemas.fleet import FleetEvent
from schemas.jobs import JobSubmitted
from schemas.kind import Terms, Workload
from schemas.roles import Role

_POLL_S = 0.2
_DRAIN_S = 5.0
_QUIET_S = 1.0
_SHOWN_NODES = 4
_PUBLISHERS: tuple[Role, ...] = ("users", "vendors", "inference", "operators")

Record = Envelope | Decision


class Scene(Protocol):
    """A part of the demo."""

    def play(self) -> Iterator[str]:
        """Do what there is to do, and yield what is awaited whenever there is something to wait for.

        Raises:
            CommandError: something is wrong.
        """

    def note(self, records: Sequence[Record]) -> None:
        """Take in what has happened.

        Raises:
            CommandError: something is wrong.
        """

    @property
    def shortcomings(self) -> list[str]:
        """Lines about what it was to show and did not."""

    @property
    def summary(self) -> str:
        """A line about what it has shown."""


@dataclass
class Stage:
    """Everything that scenes need."""

    deployment: Deployment
    follower: BoardFollower
    publishers: Mapping[Role, EventPublisher]
    progress: Progress
    patience_s: float
    """After so long without any event that could be progress, something is wrong."""
    pace: float = 1.0
    """See `infra.demo.cell.pace_of`."""
    first_decision_s: float | None = None
    """By the monotonic clock, when the first job was decided."""
    first_adapter_s: float | None = None
    """Likewise, when the first one was completed."""
    _last_event_s: float = field(default_factory=time.monotonic)

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

    def online(self, *policies: str) -> Iterator[str]:
        """Start the executors of these policies' zones that do not run yet, and wait for their nodes."""
        zones = {self.zone(policy).id for policy in policies}
        self.deployment.start_executors(zones)
        while waiting := [
            node.node
            for node in self.board.nodes.by_id.values()
            if node.owner in zones and node.status != "up"
        ]:
            yield f"{first_of(waiting, _SHOWN_NODES)} to come online"

    def play(self, scenes: Sequence[Scene]) -> None:
        """Play scenes beside each other until all are over.

        Raises:
            CommandError: a scene finds something wrong, a service cannot be kept running, or nothing has
                happened for so long that something must be wrong.
            PublishError: the broker does not take an event.
            ReadError: the log cannot be read.
        """
        self._last_event_s = time.monotonic()
        self._pass(scenes, 0.0)
        playing = [scene.play() for scene in scenes]
        while playing:
            awaited = [(each, next(each, None)) for each in playing]
            playing = [each for each, what in awaited if what is not None]
            waits = "; ".join(dict.fromkeys(what for _, what in awaited if what is not None))
            self.progress.awaits(waits)
            self._pass(scenes, _POLL_S)
            quiet_s = time.monotonic() - self._last_event_s
            if playing and quiet_s > self.patience_s:
                raise CommandError(f"nothing has happened for {quiet_s:.0f} s: waiting for {waits}")

    def drain(self, scenes: Sequence[Scene]) -> None:
        """Take in what is still there: until nothing comes for a second, or five have passed."""
        deadline_s = time.monotonic() + _DRAIN_S
        while self._pass(scenes, _QUIET_S) and time.monotonic() < deadline_s:
            pass

    def _pass(self, scenes: Sequence[Scene], timeout_s: float) -> bool:
        """Take in what has come; False if nothing has."""
        self.deployment.keep_running()
        records = self.follower.poll(timeout_s)
        for record in records:
            self._take(record)
        for scene in scenes:
            scene.note(records)
        return bool(records)

    def _take(self, record: Record) -> None:
        now_s = time.monotonic()
        if _is_progress(record):
            self._last_event_s = now_s
        if isinstance(record, Envelope):
            return
        if isinstance(record.outcome, JobOutcome) and self.first_decision_s is None:
            self.first_decision_s = now_s
        if isinstance(record.outcome, JobCompleted) and self.first_adapter_s is None:
            self.first_adapter_s = now_s
        # How a zone stands is decided again and again.
        line = None if isinstance(record.outcome, ZoneView) else happening(record)
        if line is not None:
            self.progress.say(line)


def _is_progress(record: Record) -> bool:
    """Whether a record is about a node or a job; the clock, loads and zones that stand as before are not."""
    if isinstance(record, Envelope):
        return isinstance(record.event, FleetEvent | JobSubmitted)
    return isinstance(record.outcome, JobOutcome | Command)


def refuse_lost(records: Sequence[Record], job_ids: Sequence[str]) -> None:
    """See that none of these jobs is refused or refunded.

    Raises:
        CommandError: one is.
    """
    for record in records:
        if isinstance(record, Decision) and isinstance(record.outcome, JobRefunded | JobRejected):
            lost = record.outcome
            if lost.job_id in job_ids:
                raise CommandError(f"{lost.job_id} is {lost.STATE} ({lost.reason}): {sentence(lost)}")


@contextmanager
def running_stage(
    layout: Layout,
    server: ForkServer,
    targets: Mapping[Role, Target],
    progress: Progress,
    patience_s: float,
    pace: float,
) -> Iterator[Stage]:
    """A stage whose deployment runs for the length of the block.

    Raises:
        CommandError: a service does not come up.
        BrokerError: the topics are not what they must be.
    """
    deployment = Deployment(layout, progress.say, server, progress.awaits)
    with ExitStack() as stack:
        publishers = {
            role: stack.enter_context(EventPublisher(targets[role], "millrace/demo")) for role in _PUBLISHERS
        }
        stack.enter_context(deployment.running())
        stack.callback(progress.awaits, "the services to stop")
        follower = stack.enter_context(BoardFollower(targets["auditor"]))
        follower.catch_up()
        yield Stage(deployment, follower, publishers, progress, patience_s, pace)
