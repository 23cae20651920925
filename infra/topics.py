"""Topics on a broker, created as specified, and their access rights."""

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    TopicMetadata,
)

from schemas.access import DEFAULT_GROUPS, topic_rights
from schemas.kafka_connection import KafkaConnection
from schemas.kind import ROLES, Role
from schemas.topics import TopicSpec
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError, TopicError

_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.05
_ANY_HOST = "*"


@dataclass(frozen=True, order=True)
class Grant:
    """Permission of a principal for one operation on one topic or consumer group."""

    role: str
    principal: str
    """Principal in Kafka's form, such as `User:users`."""
    resource: str
    """`topic` or `group`."""
    name: str
    operation: str


def grants(
    prefix: str,
    principals: Mapping[Role, str] | None = None,
    groups: Mapping[Role, str] = DEFAULT_GROUPS,
) -> list[Grant]:
    """Return all permissions of all roles on the topics of one prefix, by role and name.

    Args:
        prefix: Prefix of the topics.
        principals: Principals of roles, where they are not `User:<role>`.
        groups: Consumer groups, without the prefix.
    """
    found = []
    for role in ROLES:
        principal = (principals or {}).get(role, f"User:{role}")
        for topic, operations in topic_rights(role, prefix).items():
            found += [Grant(role, principal, "topic", topic, operation) for operation in operations]
        if role in groups:
            found.append(Grant(role, principal, "group", f"{prefix}.{groups[role]}", "READ"))
    return sorted(found)


def apply_grants(connection: KafkaConnection, required: Iterable[Grant]) -> list[str]:
    """Add grants to the cluster, and remove none. Return a line for each other permission.

    Those are other bindings on the topics and groups of `required`, or on all, for an operator to check.

    Raises:
        BrokerError: the broker does not answer, this client may not change access, or the grants are not in
            force within 30 s.
    """
    admin = Administration(connection, _TIMEOUT_S)
    admin.await_broker()
    bindings = [_binding(grant) for grant in required]
    for binding, answer in admin.client.create_acls(bindings, request_timeout=_TIMEOUT_S).items():
        admin.result(answer, f"change access to {_name(binding.restype)} {binding.name}")
    known = {_key(binding) for binding in bindings}
    there = _await_bindings(admin, known)
    names = {(binding.restype, binding.name) for binding in bindings}
    return sorted(
        _line(binding)
        for binding in there
        if _key(binding) not in known
        and ((binding.restype, binding.name) in names or _covers(binding, names))
    )


def _await_bindings(admin: Administration, required: Set[tuple[object, ...]]) -> Sequence[AclBinding]:
    """Wait until the required bindings are in force in the broker; return all bindings in force.

    The controller stores them first; until the broker has them from it, it still denies clients.
    """
    # The client's own types do not allow a filter with open fields.
    everything = cast(Any, AclBindingFilter)(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        there: Sequence[AclBinding] = admin.result(
            admin.client.describe_acls(everything, request_timeout=_TIMEOUT_S), "list access"
        )
        if required <= {_key(binding) for binding in there}:
            return there
        if time.monotonic() >= deadline_s:
            raise BrokerError(
                f"Kafka at {admin.connection.bootstrap_servers} took the access rights and does not hold to "
                f"them after {_TIMEOUT_S:g} s: see the broker's log"
            )
        time.sleep(_POLL_INTERVAL_S)


def _binding(grant: Grant) -> AclBinding:
    return AclBinding(
        ResourceType[grant.resource.upper()],
        grant.name,
        ResourcePatternType.LITERAL,
        grant.principal,
        _ANY_HOST,
        AclOperation[grant.operation],
        AclPermissionType.ALLOW,
    )


def _covers(binding: AclBinding, names: Iterable[tuple[object, str]]) -> bool:
    """Return whether a binding by prefix, or on all, is about one of the resources."""
    if binding.resource_pattern_type == ResourcePatternType.PREFIXED:
        return any(kind == binding.restype and name.startswith(binding.name) for kind, name in names)
    return binding.name == "*" and any(kind == binding.restype for kind, _ in names)


def _key(binding: AclBinding) -> tuple[object, ...]:
    return (
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def _line(binding: AclBinding) -> str:
    pattern = "" if binding.resource_pattern_type == ResourcePatternType.LITERAL else " (by prefix)"
    return (
        f"{_name(binding.permission_type)} {binding.principal} from {binding.host} "
        f"{_name(binding.operation).upper()} on {_name(binding.restype)} {binding.name}{pattern}"
    )


def _name(member: Any) -> str:
    """Return the name of a member of one of the client's enumerations, which may be text in its types."""
    return str(member.name).lower()


@dataclass(frozen=True)
class TopicRow:
    """A topic as the broker has it.

    `records` counts the offsets between each partition's ends, and so also what compaction has removed.
    """

    name: str
    partitions: int
    cleanup_policy: str
    retention_ms: int
    max_message_bytes: int
    compression_type: str
    records: int


def ensure_topics(
    connection: KafkaConnection, specs: Sequence[TopicSpec], timeout_s: float = _TIMEOUT_S
) -> None:
    """Create the topics that are missing, and return when each exists as specified.

    If an existing topic differs, no topic is created. Existing topics are never changed.

    Raises:
        TopicError: a topic differs from its specification, or the broker refuses to create one.
        BrokerError: the broker does not answer within `timeout_s`.
    """
    admin = Administration(connection, timeout_s)
    found = admin.metadata()
    _refuse_differences(admin, specs, found)
    missing = [spec for spec in specs if spec.name not in found]
    if missing:
        admin.create(
            # With the broker's default replication.
            NewTopic(spec.name, spec.partitions, replication_factor=-1, config=spec.config())
            for spec in missing
        )
        # Another process may have created some of them meanwhile, and otherwise.
        _refuse_differences(admin, specs, admin.await_topics({spec.name for spec in specs}))


def describe_topics(
    connection: KafkaConnection, prefix: str, timeout_s: float = _TIMEOUT_S
) -> list[TopicRow]:
    """Return the topics named `<prefix>.…`, by name.

    Raises:
        BrokerError: the broker does not answer within `timeout_s`.
    """
    admin = Administration(connection, timeout_s)
    found = {name: topic for name, topic in admin.metadata().items() if name.startswith(f"{prefix}.")}
    configs = admin.configs(found)
    records = admin.offset_counts(found)
    return [
        TopicRow(
            name=name,
            partitions=len(found[name].partitions),
            cleanup_policy=configs[name]["cleanup.policy"],
            retention_ms=int(configs[name]["retention.ms"]),
            max_message_bytes=int(configs[name]["max.message.bytes"]),
            compression_type=configs[name]["compression.type"],
            records=records[name],
        )
        for name in sorted(found)
    ]


def _refuse_differences(
    admin: Administration, specs: Iterable[TopicSpec], found: Mapping[str, TopicMetadata]
) -> None:
    existing = [spec for spec in specs if spec.name in found]
    configs = admin.configs([spec.name for spec in existing])
    differences = [
        f"{spec.name}: {setting} is {present}, expected {expected}"
        for spec in existing
        for setting, present, expected in _compare(spec, found[spec.name], configs[spec.name])
        if present != expected
    ]
    if differences:
        raise TopicError(
            f"Topics at {admin.connection.bootstrap_servers} are not what they must be: "
            f"{'; '.join(differences)}. Change them with Kafka's tools, or use another topic prefix"
        )


def _compare(
    spec: TopicSpec, found: TopicMetadata, config: Mapping[str, str]
) -> Iterable[tuple[str, str, str]]:
    yield "partitions", str(len(found.partitions)), str(spec.partitions)
    for setting, expected in spec.config().items():
        yield setting, config[setting], expected
