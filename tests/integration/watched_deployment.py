"""A deployment that a test watches through its log."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from infra.deployment.deployment import Deployment, DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from schemas.base import Event, Outcome
from schemas.codec import decode_decision, decode_event
from schemas.decisions import JobCompleted
from schemas.fleet import NodeOnline, RunReport
from schemas.kafka_connection import KafkaConnection
from schemas.topics import DECISIONS, LEDGER
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord
from streams.replay.sources import verify_kafka
from tests.integration.deployment import until
from tests.support.fork_server import shared_forks

READY_S = 120.0

_until = until  # the class below has a method of the same name

_Outcome = TypeVar("_Outcome", bound=Outcome)
_Event = TypeVar("_Event", bound=Event)


class Records:
    """The records of a topic, each read once, so that asking often takes little from training."""

    def __init__(self, target: Target, topic: str) -> None:
        self._reader = KafkaReader(target.kafka)
        self._topic = target.topic(topic)
        self._next: dict[int, int] = {}

    def new(self) -> list[ReadRecord]:
        """Return the records that have come since the last call."""
        part = self._reader.slice(self._topic)
        records = list(self._reader.read(replace(part, low={**part.low, **self._next})))
        self._next = dict(part.high)
        return records

    def close(self) -> None:
        self._reader.__exit__(None, None, None)


@dataclass
class WatchedDeployment:
    """Records of a deployment's log between `begin` and `end`."""

    deployment: Deployment
    _outcomes: list[Outcome] = field(default_factory=list, init=False)
    _ledger: list[Event] = field(default_factory=list, init=False)

    @property
    def target(self) -> Target:
        return self.deployment.spec.target

    @property
    def folders(self) -> Folders:
        return self.deployment.spec.folders

    def until(self, question: Callable[[], object], what: str, timeout_s: float = READY_S) -> None:
        """Wait until a condition holds, and restart services that ended meanwhile.

        The timeout counts from the latest report of a run, so a slow machine does not fail a test whose jobs
        progress.
        """

        def answer() -> object:
            self.deployment.keep_running()
            return question()

        while True:
            reports = len(self.events(RunReport))
            try:
                _until(answer, what, timeout_s)
                return
            except AssertionError:
                if len(self.events(RunReport)) == reports:
                    raise

    def begin(self) -> None:
        self._decision_records = Records(self.target, DECISIONS)
        self._ledger_records = Records(self.target, LEDGER)

    def end(self) -> None:
        self._decision_records.close()
        self._ledger_records.close()

    def send(self, *events: Event) -> None:
        with EventPublisher(self.target, "tests") as publisher:
            for event in events:
                publisher.publish(event)

    def decided(self, kind: type[_Outcome]) -> list[_Outcome]:
        new = self._decision_records.new()
        self._outcomes += [decode_decision(record.value or b"").outcome for record in new]
        return [outcome for outcome in self._outcomes if isinstance(outcome, kind)]

    def events(self, kind: type[_Event]) -> list[_Event]:
        """Return the ledger's events of a kind."""
        new = self._ledger_records.new()
        self._ledger += [decode_event(record.value, record.headers).event for record in new]
        return [event for event in self._ledger if isinstance(event, kind)]

    def online(self) -> set[str]:
        return {event.node for event in self.events(NodeOnline)}

    def completed(self, job_id: str) -> list[JobCompleted]:
        return [job for job in self.decided(JobCompleted) if job.job_id == job_id]

    def assert_proven(self) -> None:
        def verified() -> bool:
            verdict = verify_kafka(self.target.kafka, self.target.prefix)
            return verdict.ok and verdict.awaited == 0

        _until(verified, "the log is what the rules demand")


Watched = TypeVar("Watched", bound=WatchedDeployment)


@contextmanager
def watched(
    kind: type[Watched],
    bootstrap_servers: str,
    cells: Path,
    folders: Folders,
    settings: Mapping[str, str],
    executors: int,
    node_settings: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Iterator[Watched]:
    """A deployment on a broker that others may use, with so many executors, all of which are online."""
    target = Target(KafkaConnection(bootstrap_servers=bootstrap_servers), f"watched-{uuid.uuid4().hex[:12]}")
    layout = DeploymentSpec(cells, folders, target, settings=settings, node_settings=node_settings)
    deployment = Deployment(layout, print, shared_forks())
    with deployment.running():
        fleet = kind(deployment)
        fleet.begin()
        try:
            fleet.until(lambda: len(fleet.online()) == executors, "all executors")
            yield fleet
        finally:
            fleet.end()
