"""What must hold on the broker before a worker starts, which creates but one topic."""

import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from schemas.topics import COMMANDS, INPUTS, LEDGER, topic_name, topics
from streams.settings import LARGEST_RECORD_BYTES, MAX_SNAPSHOT_BYTES, WorkerSettings

_POLL_S = 0.05
_SEGMENT_MS = 10 * 60 * 1000


class PreflightError(Exception):
    """The broker is not as a worker needs it. The message is one line."""


def prepare(settings: WorkerSettings, snapshots_topic: str, timeout_s: float = 5.0) -> int:
    """Check the topics, create the snapshots topic if need be, and return the ledger's partition count.

    Raises:
        PreflightError: the broker does not answer, or a topic is missing or unfit.
    """
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    try:
        found = admin.list_topics(timeout=timeout_s).topics
        required = {spec.name for spec in topics(settings.topic_prefix)}
        missing = sorted(required - set(found))
        if missing:
            raise PreflightError(f"topics are missing, create them first: {', '.join(missing)}")
        _check_node_partitions(settings, found)
        ledger = found[topic_name(settings.topic_prefix, LEDGER)]
        partitions = len(ledger.partitions)
        _check_partitions(settings, found, partitions)
        if snapshots_topic not in found:
            _create_snapshots(admin, snapshots_topic, partitions, timeout_s)
            return partitions
        if len(found[snapshots_topic].partitions) != partitions:
            raise PreflightError(
                f"topic {snapshots_topic} has {len(found[snapshots_topic].partitions)} partitions and the "
                f"ledger {partitions}: a cell's snapshot and its events must lie in the same one"
            )
        _check_snapshots(admin, snapshots_topic, timeout_s)
    except KafkaException as error:
        raise PreflightError(f"Kafka at {settings.bootstrap_servers}: {error.args[0].str()}") from None
    return partitions


def _check_partitions(settings: WorkerSettings, found: dict[str, TopicMetadata], partitions: int) -> None:
    """A cell's events of all topics must reach the same worker."""
    for name in (topic_name(settings.topic_prefix, topic) for topic in INPUTS):
        if len(found[name].partitions) != partitions:
            raise PreflightError(
                f"topic {name} has {len(found[name].partitions)} partitions and the ledger {partitions}: "
                "they must have the same number, so that a cell's events come to one worker"
            )


def _check_node_partitions(settings: WorkerSettings, found: dict[str, TopicMetadata]) -> None:
    commands = topic_name(settings.topic_prefix, COMMANDS)
    count = len(found[commands].partitions)
    for node, partition in sorted(settings.node_partitions.items()):
        if partition >= count:
            raise PreflightError(
                f"node {node} is given partition {partition} of {commands}, which has {count}"
            )


def _snapshots_config() -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "max.message.bytes": str(MAX_SNAPSHOT_BYTES),
        # Snapshots replace each other quickly, and a starting worker reads whatever is not yet compacted: the
        # segment being written is not, so it is no larger than the largest snapshot needs.
        "segment.bytes": str(LARGEST_RECORD_BYTES),
        "segment.ms": str(_SEGMENT_MS),
        "min.cleanable.dirty.ratio": "0.1",
    }


def _create_snapshots(admin: AdminClient, name: str, partitions: int, timeout_s: float) -> None:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=_snapshots_config())
    for created in admin.create_topics([topic], operation_timeout=timeout_s).values():
        try:
            created.result()
        except KafkaException as error:
            # Another worker may have been quicker.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    deadline_s = time.monotonic() + timeout_s
    while not _has_leaders(admin.list_topics(timeout=timeout_s).topics.get(name)):
        if time.monotonic() > deadline_s:
            raise PreflightError(f"topic {name} was created and got no leader within {timeout_s} s")
        time.sleep(_POLL_S)


def _has_leaders(topic: TopicMetadata | None) -> bool:
    return topic is not None and all(partition.leader >= 0 for partition in topic.partitions.values())


def _check_snapshots(admin: AdminClient, name: str, timeout_s: float) -> None:
    resource = ConfigResource(ResourceType.TOPIC, name)
    config = admin.describe_configs([resource], request_timeout=timeout_s)[resource].result()
    for setting in ("cleanup.policy", "max.message.bytes"):
        wanted = _snapshots_config()[setting]
        if config[setting].value != wanted:
            raise PreflightError(f"topic {name}: {setting} is {config[setting].value}, wanted {wanted}")
