"""Who may do what with which topic: the table that access control lists are made of, and nothing else is.

Kafka knows principals, topics and consumer groups. What it cannot tell apart is inside a record: whose bid,
whose heartbeat, whose cell (docs/security.md).
"""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from schemas.topics import (
    CELLS,
    CLOCK,
    COMMANDS,
    DECISIONS,
    FLEET,
    INPUTS,
    JOBS,
    JOBS_STATE,
    LEDGER,
    PRICES,
    QUOTES,
    RULES_STATES,
    SNAPSHOTS,
    SOLVES_FINISHED,
    VIEWS,
    dead_letter_name,
    topic_name,
)

Role = Literal["users", "vendors", "operators", "nodes", "worker", "solver", "auditor"]
ROLES: tuple[Role, ...] = get_args(Role)
Operation = Literal["READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"]
"""As Kafka names them. READ and WRITE include DESCRIBE: to know that a topic is there, and where it ends."""

DEFAULT_GROUPS: Mapping[Role, str] = {"worker": "cells", "solver": "solvers"}
"""The consumer groups of those roles that form one, without the prefix."""

_DEAD_LETTERS = tuple(dead_letter_name(name) for name in (*INPUTS, LEDGER))
_LOG = (LEDGER, DECISIONS, RULES_STATES, COMMANDS, *VIEWS)
_MADE_BY_OPERATORS = (*INPUTS, *_LOG, *_DEAD_LETTERS)


def _grants(role: Role) -> Iterable[tuple[Operation, Iterable[str]]]:
    match role:
        case "users":  # bid, ask for quotes, withdraw; see what is decided, why a record is refused, prices
            yield "WRITE", (JOBS,)
            yield "READ", (DECISIONS, dead_letter_name(JOBS), PRICES, JOBS_STATE)
        case "vendors":  # quote, and see that the quote holds
            yield "WRITE", (QUOTES,)
            yield "READ", (DECISIONS, dead_letter_name(QUOTES))
        case "operators":  # make topics, configure cells, tell the time, look after what was refused
            yield "WRITE", (CELLS, CLOCK)
            yield "READ", (LEDGER, DECISIONS, *_DEAD_LETTERS)
            yield "CREATE", _MADE_BY_OPERATORS
            yield "DESCRIBE", _MADE_BY_OPERATORS
            yield "DESCRIBE_CONFIGS", _MADE_BY_OPERATORS
        case "nodes":
            yield "WRITE", (FLEET,)
            yield "READ", (COMMANDS,)
        case "worker":  # alone writes what is decided
            yield "READ", (*INPUTS, LEDGER, SNAPSHOTS)
            yield "WRITE", (*_LOG, *_DEAD_LETTERS, SNAPSHOTS)
            yield "CREATE", (SNAPSHOTS,)
            yield "DESCRIBE_CONFIGS", (SNAPSHOTS,)
        case "solver":
            yield "WRITE", (SOLVES_FINISHED,)
            yield "READ", (DECISIONS,)
        case "auditor":  # reads everything that the log is made of, and writes nothing
            yield "READ", _MADE_BY_OPERATORS
            yield "DESCRIBE_CONFIGS", _MADE_BY_OPERATORS


def topic_rights(role: Role, prefix: str) -> dict[str, frozenset[Operation]]:
    """What a role may do, by the topic's full name; topics without any right are left out."""
    rights: dict[str, frozenset[Operation]] = {}
    for operation, names in _grants(role):
        for name in names:
            topic = topic_name(prefix, name)
            rights[topic] = rights.get(topic, frozenset()) | {operation}
    return rights


def use_of_topics(role: Role, prefix: str) -> dict[str, frozenset[Operation]]:
    """The topics that a role reads or writes, and which of the two."""
    use: frozenset[Operation] = frozenset(("READ", "WRITE"))
    return {topic: rights & use for topic, rights in topic_rights(role, prefix).items() if rights & use}
