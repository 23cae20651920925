"""Every type that travels, by its CloudEvents type, and the input topic that each event belongs to."""

from typing import get_args

from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.commands import RunCancelled, SlotAssigned
from schemas.decisions import (
    CellAccepted,
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobReplanned,
    JobWithdrawn,
    NodeStatusChanged,
    ZonePriced,
)
from schemas.fleet import (
    NodeHeartbeat,
    NodeOffline,
    NodeOnline,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.quotes import VendorLeft, VendorQuoted
from schemas.solves import SolveFinished, SolveRequested

Event = (
    CellConfigured
    | ClockTicked
    | JobSubmitted
    | JobWithdrawalRequested
    | JobQuoteRequested
    | VendorQuoted
    | VendorLeft
    | NodeOnline
    | NodeHeartbeat
    | NodeOffline
    | RunStarted
    | RunProgressed
    | RunFinished
    | RunFailed
    | SolveFinished
)
Outcome = (
    CellAccepted
    | EventIgnored
    | JobAdmitted
    | JobCompleted
    | JobQuoted
    | JobRefunded
    | JobRejected
    | JobReplanned
    | JobWithdrawn
    | NodeStatusChanged
    | ZonePriced
    | SolveRequested
    | SlotAssigned
    | RunCancelled
)

EVENTS_BY_TOPIC: dict[str, tuple[type[Event], ...]] = {
    "cells": (CellConfigured,),
    "jobs": (JobSubmitted, JobWithdrawalRequested, JobQuoteRequested),
    "quotes": (VendorQuoted, VendorLeft),
    "fleet": (NodeOnline, NodeHeartbeat, NodeOffline, RunStarted, RunProgressed, RunFinished, RunFailed),
    "clock": (ClockTicked,),
    "solves.finished": (SolveFinished,),
}
"""One topic per kind of writer, so that access can differ; an event on another topic is refused."""

EVENT_TYPES: dict[str, type[Event]] = {
    model.TYPE: model for models in EVENTS_BY_TOPIC.values() for model in models
}
DECISION_TYPES: dict[str, type[Outcome]] = {model.TYPE: model for model in get_args(Outcome)}
