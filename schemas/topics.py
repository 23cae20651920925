"""The topics: their names, and the settings with which they are created."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.base import Record, View
from schemas.cells import MAX_SNAPSHOT_BYTES
from schemas.errors import InstallationError
from schemas.fleet import FLEET as FLEET_INPUT
from schemas.installed import KINDS, POLICY_EVENTS, InstalledTable
from schemas.kind import InputTopic
from schemas.loans import LoanChanged
from schemas.profiles import PROFILES as PROFILES_INPUT
from schemas.view_records import JobState, ZoneState

CELLS = "cells"
JOBS = "jobs"
FLEET = FLEET_INPUT.name
PROFILES = PROFILES_INPUT.name
CLOCK = "clock"
INFERENCE = "inference"
SOLVES_FINISHED = "solves.finished"
SOLVES_REQUESTED = "solves.requested"
"""Problems for solvers, whose digests are in decisions: see `schemas.questions`."""
LEDGER = "ledger"
DECISIONS = "decisions"
COMMANDS = "commands"
JOBS_STATE = "jobs.state"
ZONES_STATE = "zones.state"
RULES_STATES = "rules.states"
"""State of a cell at each change of its rules, packed and compressed, to verify later decisions without the
earlier rules. The header `STATE_DIGEST_HEADER` is its digest, as in the ledger."""
STATE_DIGEST_HEADER = "state_digest"
SNAPSHOTS = "snapshots"
"""Snapshots of cells, which only workers read and write; they also create the topic."""

_OF_EVERY_CELL = (
    InputTopic(CELLS, "Configurations of cells, from operators.", "operators"),
    InputTopic(JOBS, "Jobs, withdrawals and requests for a quote, from users.", "users", "user"),
    FLEET_INPUT,
    PROFILES_INPUT,
    InputTopic(CLOCK, "The time of the cells.", "operators"),
    InputTopic(INFERENCE, "Load of inference servers, offers and reclaims.", "inference", "zone"),
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
    """Return the types of decisions whose latest records are kept in compacted topics."""
    outcomes = dict.fromkeys(one for kind in KINDS.values() for one in kind.outcomes)
    return (LoanChanged, *(one for one in outcomes if issubclass(one, View)))


INPUTS: Mapping[str, InputTopic] = InstalledTable(_inputs)
"""Topics that producers write and intake reads, by name: one per role of writers, as rights differ."""
VIEWS: Mapping[str, tuple[type[Record], ...]] = InstalledTable(_views)
"""Types of the records of compacted topics, by topic: the latest record of a key counts."""

INPUT_MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest record of an input topic: intake must be able to read an oversized record to refuse it."""

HEADERS_MAX_BYTES = 1024 * 1024
"""Most bytes that intake and dead letters add to a record."""

FOR_EVER = -1

_DAY_MS = 24 * 60 * 60 * 1000
_INPUT_RETENTION_MS = 7 * _DAY_MS
_COMMAND_RETENTION_MS = 7 * _DAY_MS
_PROBLEM_RETENTION_MS = _DAY_MS
_PROBLEM_RETENTION_BYTES = 512 * 1024 * 1024
"""Size of a partition: an hour of problems of 6,000 jobs, with 0.7 MB every 5 s."""
_PROBLEM_SEGMENT_BYTES = 64 * 1024 * 1024
"""Size of the segments that retention deletes; Kafka's default is 1 GiB."""
_DEAD_LETTER_RETENTION_MS = 30 * _DAY_MS

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class TopicSpec:
    """Specification of a topic. Message sizes are those of a batch of records on the broker's disk.

    Raises:
        ValueError: the name is invalid in Kafka, or there is no partition.
    """

    name: str
    partitions: int
    retention_ms: int
    max_message_bytes: int = INPUT_MAX_MESSAGE_BYTES
    cleanup_policy: Literal["delete", "compact"] = "delete"
    compression_type: Literal["producer", "uncompressed"] = "producer"
    retention_bytes: int = FOR_EVER
    segment_bytes: int | None = None
    """Size of a segment of the log, which is deleted as a whole; None for the broker's default."""
    timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    """Whether the producer or the broker sets a record's timestamp."""

    def __post_init__(self) -> None:
        if not _LEGAL_NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} is not a topic name: use 1 to 249 letters, digits, '.', '_' or '-'"
            )
        if self.partitions < 1:
            raise ValueError(f"topic {self.name} needs at least one partition, not {self.partitions}")

    def config(self) -> dict[str, str]:
        """Return the topic's settings under Kafka's names."""
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
    """Return the full name of a topic, such as `millrace.jobs`."""
    return f"{prefix}.{name}"


def dead_letter_name(topic: str) -> str:
    """Return the name of the topic for the refused records of `topic`."""
    return f"{topic}.dlt"


def topics(
    prefix: str = "millrace", partitions: int = 4, command_partitions: int = 16
) -> tuple[TopicSpec, ...]:
    """Return every topic. All are partitioned by cell, except `commands`, which is by node."""
    inputs = tuple(_input(topic_name(prefix, name), partitions) for name in INPUTS)
    ledger = TopicSpec(
        topic_name(prefix, LEDGER),
        partitions,
        retention_ms=FOR_EVER,
        # Every record of an input topic must fit, with the additions of intake.
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
        # The bound of snapshots, which these are.
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
        # Events enter the ledger by these times: no producer may choose its place by its own timestamp.
        timestamp_type="LogAppendTime",
        # The broker decompresses records and refuses those that are then too large, so no consumer has to
        # decompress a bomb.
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
"""Prefix of the names below; a refused record's own headers with this prefix are omitted."""

TOPIC_HEADER = "dlt_topic"
PARTITION_HEADER = "dlt_partition"
OFFSET_HEADER = "dlt_offset"
"""Offset of the refused record."""
REASON_HEADER = "dlt_reason"
VALUE_BYTES_HEADER = "dlt_value_bytes"
"""Length of the value before it was cut."""
HEADER_COUNT_HEADER = "dlt_header_count"
"""Number of headers before some were omitted."""
ESCAPED_HEADER_COUNT_HEADER = "dlt_escaped_header_count"
"""Number of kept headers in which unprintable characters were escaped."""
