"""Every record type by its CloudEvents type, and the input topic of each event."""

from collections.abc import Mapping
from functools import cache

from schemas import topics
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.changes import (
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.clock import ClockTicked
from schemas.commands import Command, RunDisowned
from schemas.decisions import (
    CellAccepted,
    EventFaulted,
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    NodeStatusChanged,
    ZoneAccepted,
)
from schemas.fleet import (
    CommandRefused,
    NodeHeartbeat,
    NodeOffline,
    NodeOnline,
    NodeSeen,
    NodeSilent,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.installed import KINDS, POLICY_EVENTS, InstalledTable
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded, ReclaimPlanned
from schemas.profiles import ProfileAccepted, ProfileReported
from schemas.rules import RulesAdopted
from schemas.solves import SolveFinished, SolveRequested

_OF_EVERY_CELL: dict[str, tuple[type[Event], ...]] = {
    topics.CELLS: (
        *(CellConfigured, ZoneConfigured),
        *(NodeRegistered, NodeRetired, NodeLent, NodeReturned, NodeCordoned, NodeUncordoned),
    ),
    topics.JOBS: (JobSubmitted, JobWithdrawalRequested, JobQuoteRequested),
    topics.FLEET: (
        *(NodeOnline, NodeHeartbeat, NodeOffline, CommandRefused),
        *(RunStarted, RunProgressed, RunFinished, RunFailed),
    ),
    topics.PROFILES: (ProfileReported,),
    topics.CLOCK: (ClockTicked,),
    topics.INFERENCE: (InferenceLoadReported, CapacityOffered, CapacityReclaimed),
    topics.SOLVES_FINISHED: (SolveFinished,),
}
_OF_EVERY_ZONE: tuple[type[Outcome], ...] = (
    CellAccepted,
    EventFaulted,
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    LoanChanged,
    NodeMoved,
    NodeStatusChanged,
    OfferAnswered,
    ProfileAccepted,
    ReclaimEnded,
    ReclaimPlanned,
    RunDisowned,
    SolveRequested,
    ZoneAccepted,
)

EVENTS_BY_TOPIC: Mapping[str, tuple[type[Event], ...]] = InstalledTable(
    lambda: {
        name: (
            *_OF_EVERY_CELL.get(name, ()),
            *(event for event, topic in POLICY_EVENTS.items() if topic.name == name),
        )
        for name in topics.INPUTS
    }
)
"""Input topic of each event; an event on another topic is refused."""

INTAKE_EVENTS: tuple[type[Event], ...] = (NodeSeen, NodeSilent, RulesAdopted)
"""Events that workers add to the ledger; refused on every input topic."""

TOPIC_BY_EVENT: Mapping[type[Event], str] = InstalledTable(
    lambda: {model: topic for topic, models in EVENTS_BY_TOPIC.items() for model in models}
)
EVENT_TYPES: Mapping[str, type[Event]] = InstalledTable(
    lambda: {model.TYPE: model for model in (*TOPIC_BY_EVENT, *INTAKE_EVENTS)}
)
LEDGER_TYPES: Mapping[str, type[Event]] = InstalledTable(
    lambda: {ce_type: model for ce_type, model in EVENT_TYPES.items() if model is not NodeHeartbeat}
)
"""Types of events in the ledger, by name: decisions depend on these alone."""
DECISION_TYPES: Mapping[str, type[Outcome]] = InstalledTable(
    lambda: {
        model.TYPE: model
        for model in (*_OF_EVERY_ZONE, *(model for kind in KINDS.values() for model in kind.outcomes))
    }
)


def writer_of(event: Event) -> str:
    """Return the writer of an event: its input topic and, within it, its user, vendor, node or zone.

    Events of different writers never share an id, and waiting writers are served in turn.
    """
    topic = TOPIC_BY_EVENT.get(type(event), "intake")
    field = writer_field(topic)
    return topic if field is None else f"{topic}/{getattr(event, field)}"


@cache
def writer_field(topic: str) -> str | None:
    """Return the field with the writer of a topic's events; None if that is the operator."""
    return topics.INPUTS[topic].writer_field if topic in topics.INPUTS else None


@cache
def runners_of(policy: str) -> frozenset[str]:
    """Return the runners of the commands of a kind of policy, which a node of its zones must have."""
    commands = (model for model in KINDS[policy].outcomes if issubclass(model, Command))
    return frozenset(model.RUNNER for model in commands)
