"""The topics: their names, in one place, and the settings that each is created with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.base import Record, View
from schemas.cells import MAX_SNAPSHOT_BYTES
from schemas.errors import InstallationError
from schemas.fleet import FLEET as FLEET_INPUT
from schemas.kind import InputTopic
from schemas.kinds import KINDS, POLICY_EVENTS, InstalledTable
from schemas.loans import LoanChanged
from schemas.views import JobState, ZoneState

CELLS = "cells"
JOBS = "jobs"
FLEET = FLEET_INPUT.name
CLOCK = "clock"
INFERENCE = "inference"
SOLVES_FINISHED = "solves.finished"
SOLVES_REQUESTED = "solves.requested"
"""Problems for solvers, beside the log: the decisions have their digests, see `schemas.questions`."""
LEDGER = "ledger"
DECISIONS = "decisions"
COMMANDS = "commands"
JOBS_STATE = "jobs.state"
ZONES_STATE = "zones.state"
RULES_STATES = "rules.states"
"""The state of a cell wherever its rules changed, packed and compressed: who lacks the rules before can
verify what came after. In the header `STATE_DIGEST_HEADER` is its digest, as the ledger names it."""
STATE_DIGEST_HEADER = "state_digest"
SNAPSHOTS = "snapshots"
"""The state of each cell, kept by workers for themselves; they make the topic as well."""

_OF_EVERY_CELL = (
    InputTopic(CELLS, "Configurations of cells, from operators.", "operators"),
    InputTopic(JOBS, "Jobs, withdrawals and requests for a quote, from users.", "users", "user"),
    FLEET_INPUT,
    InputTopic(CLOCK, "The time. It reaches a cell only here.", "operators"),
    InputTopic(
        INFERENCE, "The load of inference servers, which are lent and wanted back.", "inference", "zone"
    ),
    InputTopic(SOLVES_FINISHED, "Answers to requests for long solves, from solvers.", "solver", "zone"),
)


def _inputs() -> dict[str, InputTopic]:
    topics: dict[str, InputTopic] = {}
    for topic in (*_OF_EVERY_CELL, *POLICY_EVENTS.values()):
        if topics.setdefault(topic.name, topic) != topic:
            raise InstallationError(f"two different input topics are named {topic.name}")
    return topics


def _views() -> dict[str, tuple[type[Record], ...]]:
    views: dict[str, tuple[type[Record], ...]] = {JOBS_STATE: (JobState,), ZONES_STATE: (ZoneState,)}
    for view in decision_views():
        views[view.VIEW] = (*views.get(view.VIEW, ()), view)
    return views


def decision_views() -> tuple[type[View], ...]:
    """Return the decisions that are states, of which the latest are kept."""
    outcomes = dict.fromkeys(one for kind in KINDS.values() for one in kind.outcomes)
    return (LoanChanged, *(one for one in outcomes if issubclass(one, View)))


INPUTS: Mapping[str, InputTopic] = InstalledTable(_inputs)
"""Topics that producers write and intake reads, by name: one per kind of writer, as rights differ."""
VIEWS: Mapping[str, tuple[type[Record], ...]] = InstalledTable(_views)
"""Topics that are kept by key, and the types of their records: the latest record counts."""

INPUT_MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Large enough for intake to see an oversized record, and to say so in the dead letter."""

HEADERS_MAX_BYTES = 1024 * 1024
"""Bytes that intake and dead letters may add to a record on its way."""

FOR_EVER = -1

_DAY_MS = 24 * 60 * 60 * 1000
_INPUT_RETENTION_MS = 7 * _DAY_MS
_COMMAND_RETENTION_MS = 7 * _DAY_MS
_PROBLEM_RETENTION_MS = _DAY_MS
_PROBLEM_RETENTION_BYTES = 512 * 1024 * 1024
"""Size of a partition: an hour of problems of 6,000 jobs, of 0.7 MB each, one every 5 s at most."""
_PROBLEM_SEGMENT_BYTES = 64 * 1024 * 1024
"""Size of the segments that retention deletes; Kafka's default is a GiB."""
_DEAD_LETTER_RETENTION_MS = 30 * _DAY_MS

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class TopicSpec:
    """A topic as it must be. Sizes of messages are those of a batch of records on the broker's disk.

    Raises:
        ValueError: Kafka would refuse the name, or there is no partition.
    """

    name: str
    partitions: int
    retention_ms: int
    max_message_bytes: int = INPUT_MAX_MESSAGE_BYTES
    cleanup_policy: Literal["delete", "compact"] = "delete"
    compression_type: Literal["producer", "uncompressed"] = "producer"
    retention_bytes: int = FOR_EVER
    segment_bytes: int | None = None
    """Size of a file of the log, which is deleted as a whole; None for the broker's default."""
    timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    """Whether a record's timestamp is its producer's word or the moment in which the broker took it."""

    def __post_init__(self) -> None:
        if not _LEGAL_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no topic name: use 1 to 249 letters, digits, '.', '_' or '-'")
        if self.partitions < 1:
            raise ValueError(f"topic {self.name} needs at least one partition, not {self.partitions}")

    def config(self) -> dict[str, str]:
        """The topic's settings under Kafka's names."""
        return {
            "cleanup.policy": self.cleanup_policy,
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(self.retention_bytes),
            "max.message.bytes": str(self.max_message_bytes),
            "compression.type": self.compression_type,
            "message.timestamp.type": self.timestamp_type,
            **({} if self.segment_bytes is None else {"segment.bytes": str(self.segment_bytes)}),
        }


def topic_name(prefix: str, name: str) -> str:
    """The full name of a topic, such as `millrace.jobs`."""
    return f"{prefix}.{name}"


def dead_letter_name(topic: str) -> str:
    """The name of the topic that takes the bad records of `topic`."""
    return f"{topic}.dlt"


def topics(
    prefix: str = "millrace", partitions: int = 4, command_partitions: int = 16
) -> tuple[TopicSpec, ...]:
    """Return every topic. All are partitioned by cell, save for `commands`, which is by node."""
    inputs = tuple(_input(topic_name(prefix, name), partitions) for name in INPUTS)
    ledger = TopicSpec(
        topic_name(prefix, LEDGER),
        partitions,
        retention_ms=FOR_EVER,
        # Whatever an input topic took must fit, with what intake adds.
        max_message_bytes=INPUT_MAX_MESSAGE_BYTES + HEADERS_MAX_BYTES,
    )
    decisions = TopicSpec(topic_name(prefix, DECISIONS), partitions, retention_ms=FOR_EVER)
    commands = TopicSpec(topic_name(prefix, COMMANDS), command_partitions, retention_ms=_COMMAND_RETENTION_MS)
    problems = TopicSpec(
        topic_name(prefix, SOLVES_REQUESTED),
        partitions,
        retention_ms=_PROBLEM_RETENTION_MS,
        retention_bytes=_PROBLEM_RETENTION_BYTES,
        segment_bytes=_PROBLEM_SEGMENT_BYTES,
    )
    rules_states = TopicSpec(
        topic_name(prefix, RULES_STATES),
        partitions,
        retention_ms=FOR_EVER,
        # As a snapshot, which these are.
        max_message_bytes=MAX_SNAPSHOT_BYTES,
    )
    views = tuple(_view(topic_name(prefix, name), partitions) for name in VIEWS)
    dead_letters = tuple(_dead_letter(source) for source in (*inputs, ledger))
    return (*inputs, ledger, decisions, problems, rules_states, commands, *views, *dead_letters)


def _input(name: str, partitions: int) -> TopicSpec:
    return TopicSpec(
        name,
        partitions,
        retention_ms=_INPUT_RETENTION_MS,
        max_message_bytes=INPUT_MAX_MESSAGE_BYTES,
        # Events enter the ledger by these times: no producer may choose its place by a stamp of its own.
        timestamp_type="LogAppendTime",
        # The broker itself expands what comes compressed, and refuses what is then too large: no consumer
        # ever expands a bomb.
        compression_type="uncompressed",
    )


def _view(name: str, partitions: int) -> TopicSpec:
    return TopicSpec(name, partitions, retention_ms=FOR_EVER, cleanup_policy="compact")


def _dead_letter(source: TopicSpec) -> TopicSpec:
    return TopicSpec(
        dead_letter_name(source.name),
        source.partitions,
        retention_ms=_DEAD_LETTER_RETENTION_MS,
        max_message_bytes=source.max_message_bytes + HEADERS_MAX_BYTES,
    )


HEADER_PREFIX = "dlt_"
"""Prefix of the names below; a refused record's own headers of such names are left out."""

TOPIC_HEADER = "dlt_topic"
PARTITION_HEADER = "dlt_partition"
OFFSET_HEADER = "dlt_offset"
"""Where the record stood."""
REASON_HEADER = "dlt_reason"
VALUE_BYTES_HEADER = "dlt_value_bytes"
"""Length of the value before it was cut."""
HEADER_COUNT_HEADER = "dlt_header_count"
"""Headers before some were left out."""
ESCAPED_HEADER_COUNT_HEADER = "dlt_escaped_header_count"
"""Kept headers in which characters were escaped, so that headers may be printed."""
