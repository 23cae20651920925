"""Environment of the demo's scenes: a deployment of one cell, its log and model, and publishers of events."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from infra.deployment.deployment import Deployment, DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.deployment.fork_server import ForkServer
from infra.deployment.service import Service
from infra.errors import CommandError
from infra.figures.board import Board
from infra.log.publisher import EventPublisher
from infra.log.reader import BoardFollower
from infra.log.target import Target
from infra.progress import Progress
from infra.text import first_of
from infra.views.sentences import sentence
from infra.views.words import happening
from schemas.base import Event, ZoneView
from schemas.cells import CellConfigured, Zone
from schemas.codec import Decision, Envelope
from schemas.commands import Command
from schemas.decisions import JobCompleted, JobOutcome, JobRefunded, JobRejected
from schemas.fleet import FleetEvent
from schemas.jobs import JobSubmitted
from schemas.kind import Role, Terms, Workload

MODEL = "tiny-llama"
_MODEL_POLL_S = 0.1


_POLL_S = 0.2
_DRAIN_S = 5.0
_QUIET_S = 1.0
_SHOWN_NODES = 4
_PUBLISHERS: tuple[Role, ...] = ("users", "vendors", "inference", "operators")


@contextmanager
def default_model(folders: Folders, server: ForkServer) -> Iterator[Callable[[], None]]:
    """Find the small default model, or make it, while the block runs; yield a function that waits for it.

    Raises:
        CommandError: the model cannot be made.
    """
    function = "executors.lora.default_base:place_default_base"
    launch = server.forked("default-model", {}, function, str(folders.models / MODEL))
    making = Service("default-model", launch, folders.logs)

    def begin() -> None:
        with suppress(OSError, EOFError):  # the server stopped before it was ready
            making.start()

    # A thread waits for the server, so other services start meanwhile.
    beginning = threading.Thread(target=begin, daemon=True)
    beginning.start()

    def await_model() -> None:
        while beginning.is_alive() or making.exit_status != 0:
            server.check()
            if making.exit_status is not None:
                making.keep_running()
            elif making.pid is None and not beginning.is_alive():
                begin()  # its server died before it was forked
            time.sleep(_MODEL_POLL_S)

    try:
        yield await_model
    finally:
        if not beginning.is_alive():
            making.stop()


Record = Envelope | Decision


class Scene(Protocol):
    """A part of the demo."""

    def play(self) -> Iterator[str]:
        """Run the scene, and yield a text about what is awaited whenever it waits.

        Raises:
            CommandError: the scene fails.
        """

    def note(self, records: Sequence[Record]) -> None:
        """Process new records.

        Raises:
            CommandError: the scene fails.
        """

    @property
    def shortcomings(self) -> list[str]:
        """Lines about expected results that the scene did not have."""

    @property
    def summary(self) -> str:
        """Line about the results of the scene."""


@dataclass
class Stage:
    """Deployment, log and publishers of the scenes."""

    deployment: Deployment
    follower: BoardFollower
    publishers: Mapping[Role, EventPublisher]
    progress: Progress
    patience_s: float
    """Longest time without any event that could be progress before the demo fails."""
    first_decision_s: float | None = None
    """Time of the first decision about a job, by the monotonic clock."""
    first_adapter_s: float | None = None
    """Time of the first completion, by the monotonic clock."""
    _last_event_s: float = field(default_factory=time.monotonic)

    @property
    def cell(self) -> CellConfigured:
        (cell,) = self.deployment.cells
        return cell

    @property
    def board(self) -> Board:
        """Present state of the cell."""
        return self.follower.boards[self.cell.cell]

    def zone(self, policy: str) -> Zone:
        return next(zone for zone in self.cell.zones if zone.policy.kind == policy)

    def send(self, event: Event, role: Role = "users") -> None:
        self.publishers[role].publish(event)

    def submit(self, zone: str, job_id: str, workload: Workload, terms: Terms) -> None:
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
        """Play scenes at the same time until all are over.

        Raises:
            CommandError: a scene fails, a service keeps dying, or nothing has happened for `patience_s`.
            PublishError: the broker does not confirm an event.
            ReadError: the log cannot be read.
        """
        self._last_event_s = time.monotonic()
        self._pass(scenes, 0.0)
        playing = [scene.play() for scene in scenes]
        while playing:
            awaited = [(each, next(each, None)) for each in playing]
            playing = [each for each, text in awaited if text is not None]
            waits = "; ".join(dict.fromkeys(text for _, text in awaited if text is not None))
            self.progress.awaits(waits)
            self._pass(scenes, _POLL_S)
            quiet_s = time.monotonic() - self._last_event_s
            if playing and quiet_s > self.patience_s:
                raise CommandError(f"nothing has happened for {quiet_s:.0f} s: waiting for {waits}")

    def refuse_lost(self, records: Sequence[Record], job_ids: Sequence[str]) -> None:
        """Check that none of these jobs is rejected or refunded.

        Raises:
            CommandError: a job is rejected or refunded.
        """
        for record in records:
            if isinstance(record, Decision) and isinstance(record.outcome, JobRefunded | JobRejected):
                lost, message = record.outcome, self.board.messages.of(record)
                if lost.job_id in job_ids:
                    why = ": ".join(filter(None, (sentence(lost), message)))
                    raise CommandError(f"{lost.job_id} is {lost.STATE} ({lost.reason}): {why}")

    def drain(self, scenes: Sequence[Scene]) -> None:
        """Process further records, until none come for a second or five seconds have passed."""
        deadline_s = time.monotonic() + _DRAIN_S
        while self._pass(scenes, _QUIET_S) and time.monotonic() < deadline_s:
            pass

    def _pass(self, scenes: Sequence[Scene], timeout_s: float) -> bool:
        """Process new records; return whether there were any."""
        self.deployment.keep_running()
        records = self.follower.poll(timeout_s)
        for record in records:
            self._process(record)
        for scene in scenes:
            scene.note(records)
        return bool(records)

    def _process(self, record: Record) -> None:
        now_s = time.monotonic()
        if _is_progress(record):
            self._last_event_s = now_s
        if isinstance(record, Envelope):
            return
        if isinstance(record.outcome, JobOutcome) and self.first_decision_s is None:
            self.first_decision_s = now_s
        if isinstance(record.outcome, JobCompleted) and self.first_adapter_s is None:
            self.first_adapter_s = now_s
        if isinstance(record.outcome, ZoneView):
            return  # states of zones are decided too often to be shown
        line = happening(record, message=self.board.messages.of(record))
        if line is not None:
            self.progress.show(line)


def _is_progress(record: Record) -> bool:
    """Return whether a record is about a node or a job; the clock, loads and states of zones are not."""
    if isinstance(record, Envelope):
        return isinstance(record.event, FleetEvent | JobSubmitted)
    return isinstance(record.outcome, JobOutcome | Command)


@contextmanager
def running_stage(
    layout: DeploymentSpec,
    server: ForkServer,
    targets: Mapping[Role, Target],
    progress: Progress,
    patience_s: float,
) -> Iterator[Stage]:
    """Yield a stage whose deployment runs within the block.

    Raises:
        CommandError: a service does not start.
        BrokerError: a topic is missing or has other settings.
    """
    deployment = Deployment(layout, progress.show, server, progress.awaits)
    with ExitStack() as stack:
        publishers = {
            role: stack.enter_context(EventPublisher(targets[role], "millrace/demo")) for role in _PUBLISHERS
        }
        stack.enter_context(deployment.running())
        stack.callback(progress.awaits, "the services to stop")
        follower = stack.enter_context(BoardFollower(targets["auditor"]))
        deque(follower.catch_up(), maxlen=0)
        yield Stage(deployment, follower, publishers, progress, patience_s)
