"""The node's partition of `commands`, read from where the journal says. No consumer group takes part."""

import logging
from dataclasses import dataclass
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from executors.service.settings import ExecutorSettings
from schemas.partitions import key_partition
from schemas.topics import COMMANDS, topic_name

_METADATA_TIMEOUT_S = 30.0
_MAX_RECORDS_AT_ONCE = 100

_log = logging.getLogger(__name__)


class CommandLogError(RuntimeError):
    """The topic of commands is not as a node needs it."""


@dataclass(frozen=True)
class CommandRecord:
    """A record of the topic, before anyone has judged it."""

    offset: int
    value: bytes | None


class CommandLog:
    """Reads one partition.

    Attributes:
        cluster_id: which Kafka cluster it is on.
        topic: the topic's full name.
        partition: the node's.
        caught_up: whether all that was there when reading began has been read.
    """

    def __init__(self, consumer: Consumer, cluster_id: str, topic: str, partition: int) -> None:
        self._consumer = consumer
        self.cluster_id = cluster_id
        self.topic = topic
        self.partition = partition
        self.caught_up = False

    @classmethod
    def connect(cls, settings: ExecutorSettings) -> Self:
        """Find the node's partition; reading begins with `start`.

        Raises:
            CommandLogError: there is no such topic or partition.
            KafkaException: the broker does not answer.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "client.id": f"millrace-executor-{settings.node}",
                # Required, and never used: the position is in the journal.
                "group.id": f"{settings.topic_prefix}.executor.{settings.node}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
                "reconnect.backoff.max.ms": 1_000,
            },
            logger=_log,
        )
        topic = topic_name(settings.topic_prefix, COMMANDS)
        metadata = consumer.list_topics(timeout=_METADATA_TIMEOUT_S)
        if topic not in metadata.topics:
            raise CommandLogError(f"topic {topic} is missing: create the topics first")
        count = len(metadata.topics[topic].partitions)
        partition = settings.node_partitions.get(settings.node)
        if partition is None:
            partition = key_partition(settings.node, count)
        if partition >= count:
            raise CommandLogError(
                f"node {settings.node} is given partition {partition} of {topic}, which has {count}"
            )
        return cls(consumer, metadata.cluster_id or "", topic, partition)

    def start(self, next_offset: int) -> None:
        """Read from `next_offset` on, or from the earliest record if the topic does not go there."""
        self._consumer.assign([TopicPartition(self.topic, self.partition, next_offset)])

    def read(self, timeout_s: float) -> list[CommandRecord]:
        """Return the next records; waits for the first one only.

        Raises:
            KafkaException: reading cannot go on.
        """
        records = []
        message = self._consumer.poll(timeout_s)
        while message is not None:
            error = message.error()
            if error is None:
                records.append(CommandRecord(message.offset(), message.value()))
            else:
                self._on_error(error)
            if len(records) == _MAX_RECORDS_AT_ONCE:
                break
            message = self._consumer.poll(0)
        return records

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self.caught_up = True
        elif error.fatal() or error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ):
            raise KafkaException(error)
        else:
            _log.warning("commands unread topic=%s error=%s; tried again", self.topic, error.str())
