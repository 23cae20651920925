"""Who the parts of a deployment are on its broker."""

import os

from infra.acls import apply_grants, grants
from infra.broker import RunningBroker
from schemas.access import DEFAULT_GROUPS, ROLES, Role
from schemas.kafka_connection import KafkaConnection


def principals(broker: RunningBroker, prefix: str) -> dict[Role, KafkaConnection]:
    """How each role connects. On a secured broker of ours each is given its rights first.

    Raises:
        BrokerError: the broker does not answer.
    """
    if broker.credentials is not None:
        groups = {
            role: os.environ.get(f"MILLRACE_{role.upper()}_GROUP") or group
            for role, group in DEFAULT_GROUPS.items()
        }
        apply_grants(broker.connection("admin"), grants(prefix, groups=groups))
    return {role: broker.connection(role) for role in ROLES}
