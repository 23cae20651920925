"""Reading the node's partition of `commands` from the journal's position, without a consumer group."""

import logging
from dataclasses import dataclass
from typing import Self

from executors.node.settings import ExecutorSettings
from schemas.access import use_of_topics
from schemas.topics import COMMANDS, topic_name
from streams.kafka.administration import Administration
from streams.kafka.configuration import reader
from streams.kafka.consumer import RecordConsumer
from streams.kafka.records import Place, key_partition

_ANSWER_TIMEOUT_S = 30.0
_MAX_RECORDS_AT_ONCE = 100

_log = logging.getLogger(__name__)


class CommandLogError(RuntimeError):
    """The topic of commands is unfit for a node."""


@dataclass(frozen=True)
class CommandRecord:
    """An unparsed record of the topic."""

    offset: int
    value: bytes | None


class CommandLog:
    """Reads one partition.

    Attributes:
        cluster_id: id of its Kafka cluster.
        topic: the topic's full name.
        partition: the node's.
    """

    def __init__(self, consumer: RecordConsumer, cluster_id: str, topic: str, partition: int) -> None:
        self._consumer = consumer
        self.cluster_id = cluster_id
        self.topic = topic
        self.partition = partition

    @classmethod
    def connect(cls, settings: ExecutorSettings) -> Self:
        """Find the node's partition; reading begins with `start`.

        Raises:
            CommandLogError: there is no such partition.
            BrokerError: the broker does not answer, or a topic or a right is missing.
        """
        topic = topic_name(settings.topic_prefix, COMMANDS)
        administration = Administration(settings, _ANSWER_TIMEOUT_S)
        count = administration.require(use_of_topics("nodes", settings.topic_prefix))[topic]
        consumer = RecordConsumer(
            {
                **reader(settings, f"millrace-executor-{settings.node}"),
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            },
            _log,
        )
        partition = settings.node_partitions.get(settings.node)
        if partition is None:
            partition = key_partition(settings.node, count)
        if partition >= count:
            raise CommandLogError(
                f"node {settings.node} is given partition {partition} of {topic}, which has {count}"
            )
        return cls(consumer, administration.cluster_id(), topic, partition)

    def start(self, next_offset: int) -> None:
        """Read from `next_offset` on, or from the earliest record if the topic starts later or ends
        before."""
        self._consumer.assign({Place(self.topic, self.partition): next_offset})

    @property
    def caught_up(self) -> bool:
        """Whether all records at the start of reading are read."""
        return bool(self._consumer.ended)

    def read(self, timeout_s: float) -> list[CommandRecord]:
        """Return the next records; wait only for the first one.

        Raises:
            UnreadTopicError: reading cannot continue.
        """
        records = self._consumer.read(timeout_s, _MAX_RECORDS_AT_ONCE)
        return [CommandRecord(record.offset, record.value) for record in records]

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()
