"""The topics on a broker: created as specified, never used otherwise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import NewTopic, TopicMetadata

from infra.kafka.errors import BrokerError, TopicError
from schemas.kafka_connection import KafkaConnection
from schemas.topics import TopicSpec
from streams.kafka.administration import Administration

__all__ = ["BrokerError", "TopicError", "TopicRow", "describe_topics", "ensure_topics"]

_TIMEOUT_S = 30.0


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

    Nothing is created when one of those that exist differs, and none is ever changed.

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
    records = admin.record_counts(found)
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
        f"{spec.name}: {setting} is {present}, wanted {wanted}"
        for spec in existing
        for setting, present, wanted in _compare(spec, found[spec.name], configs[spec.name])
        if present != wanted
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
    for setting, wanted in spec.config().items():
        yield setting, config[setting], wanted
