"""Access control lists: the table of `schemas.access` as Kafka's bindings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from schemas.access import DEFAULT_GROUPS, ROLES, Role, topic_rights
from schemas.kafka_connection import KafkaConnection
from streams.kafka.administration import Administration

_TIMEOUT_S = 30.0
_ANY_HOST = "*"


@dataclass(frozen=True, order=True)
class Grant:
    """A principal's right to one operation on one topic or consumer group."""

    role: str
    principal: str
    """As Kafka writes it, such as `User:users`."""
    resource: str
    """`topic` or `group`."""
    name: str
    operation: str


def grants(
    prefix: str,
    principals: Mapping[Role, str] | None = None,
    groups: Mapping[Role, str] = DEFAULT_GROUPS,
) -> list[Grant]:
    """Every right of every role on the topics of one prefix, by role and name.

    Args:
        principals: whom a role is, where it is not `User:<role>`.
        groups: the consumer groups, without the prefix.
    """
    found = []
    for role in ROLES:
        principal = (principals or {}).get(role, f"User:{role}")
        for topic, operations in topic_rights(role, prefix).items():
            found += [Grant(role, principal, "topic", topic, operation) for operation in operations]
        if role in groups:
            found.append(Grant(role, principal, "group", f"{prefix}.{groups[role]}", "READ"))
    return sorted(found)


def apply_grants(connection: KafkaConnection, wanted: Iterable[Grant]) -> list[str]:
    """Give the cluster every grant; nothing is taken away. Rights beyond them come back, a line for each.

    Returned are other bindings on the topics and groups of `wanted`, or on all: somebody gave them, and may
    want to take them back.

    Raises:
        BrokerError: the broker does not answer, or this client may not change access.
    """
    admin = Administration(connection, _TIMEOUT_S)
    admin.await_broker()
    bindings = [_binding(grant) for grant in wanted]
    for binding, answer in admin.client.create_acls(bindings, request_timeout=_TIMEOUT_S).items():
        admin.result(answer, f"change access to {binding.restype.name.lower()} {binding.name}")
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    there = admin.result(admin.client.describe_acls(everything, request_timeout=_TIMEOUT_S), "list access")
    names = {(binding.restype, binding.name) for binding in bindings}
    known = {_key(binding) for binding in bindings}
    return sorted(
        _line(binding)
        for binding in there
        if _key(binding) not in known
        and ((binding.restype, binding.name) in names or _covers(binding, names))
    )


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


def _covers(binding: AclBinding, names: Iterable[tuple[ResourceType, str]]) -> bool:
    """Whether a binding by prefix, or on all, is about one of the resources."""
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
        f"{binding.permission_type.name.lower()} {binding.principal} from {binding.host} "
        f"{binding.operation.name} on {binding.restype.name.lower()} {binding.name}{pattern}"
    )
