"""The rights of each role on each topic: the only table from which access control lists are made.

Kafka has principals, topics and consumer groups. It cannot check the content of a record, such as the user of
a bid, the node of a heartbeat or the cell (docs/security.md).
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from schemas.kind import Role
from schemas.topics import (
    COMMANDS,
    DECISIONS,
    INPUTS,
    LEDGER,
    RULES_STATES,
    SNAPSHOTS,
    SOLVES_REQUESTED,
    VIEWS,
    ZONES_STATE,
    dead_letter_name,
    topic_name,
)

Operation = Literal["READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"]
"""Operations by Kafka's names. READ and WRITE include DESCRIBE: the existence and the ends of a topic."""

DEFAULT_GROUPS: Mapping[Role, str] = {"worker": "cells", "solver": "solvers"}
"""Consumer groups without the prefix, by the roles that have one."""


def _grants(role: Role) -> Iterable[tuple[Operation, Iterable[str]]]:
    dead_letters = tuple(dead_letter_name(name) for name in (*INPUTS, LEDGER))
    log = (LEDGER, DECISIONS, SOLVES_REQUESTED, RULES_STATES, COMMANDS, *VIEWS)
    made_by_operators = (*INPUTS, *log, *dead_letters)
    own = tuple(topic.name for topic in INPUTS.values() if topic.writers == role)
    yield "WRITE", own
    match role:
        case "users":  # see decisions, views, and the reasons of refused records
            views = (view for view in VIEWS if view != ZONES_STATE)
            yield "READ", (DECISIONS, *views, *map(dead_letter_name, own))
        case "vendors":
            yield "READ", (DECISIONS, *map(dead_letter_name, own))
        case "inference":  # forecast from earlier loads, and read the servers of a zone from views
            yield "READ", (*own, DECISIONS, *VIEWS, *map(dead_letter_name, own))
        case "operators":  # create topics, and handle refused records
            yield "READ", (LEDGER, DECISIONS, *dead_letters)
            yield "CREATE", made_by_operators
            yield "DESCRIBE", made_by_operators
            yield "DESCRIBE_CONFIGS", made_by_operators
        case "nodes":
            yield "READ", (COMMANDS,)
        case "worker":  # the only writer of decisions
            yield "READ", (*INPUTS, LEDGER, SNAPSHOTS)
            yield "WRITE", (*log, *dead_letters, SNAPSHOTS)
            yield "CREATE", (SNAPSHOTS,)
            yield "DESCRIBE_CONFIGS", (SNAPSHOTS,)
        case "solver":
            yield "READ", (SOLVES_REQUESTED,)
        case "auditor":  # reads all records that a log follows from, and snapshots; writes nothing
            yield "READ", (*made_by_operators, SNAPSHOTS)
            yield "DESCRIBE_CONFIGS", (*made_by_operators, SNAPSHOTS)


def topic_rights(role: Role, prefix: str) -> dict[str, frozenset[Operation]]:
    """Return a role's rights, by the topic's full name; topics without any right are left out."""
    rights: dict[str, frozenset[Operation]] = {}
    for operation, names in _grants(role):
        for name in names:
            topic = topic_name(prefix, name)
            rights[topic] = rights.get(topic, frozenset()) | {operation}
    return rights


def use_of_topics(role: Role, prefix: str) -> dict[str, frozenset[Operation]]:
    """Return the topics that a role reads or writes, with the operations."""
    use: frozenset[Operation] = frozenset(("READ", "WRITE"))
    return {topic: rights & use for topic, rights in topic_rights(role, prefix).items() if rights & use}
