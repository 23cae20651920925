"""Reading the node's partition of `commands` from the journal's position, without a consumer group."""

import logging
from dataclasses import dataclass
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from executors.node.settings import ExecutorSettings
from schemas.access import use_of_topics
from schemas.topics import COMMANDS, topic_name
from streams.kafka.administration import Administration
from streams.kafka.configuration import reader
from streams.kafka.records import key_partition
from streams.kafka.transactions import OpenTransactions

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
        caught_up: whether all records at the start of reading are read.
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
            CommandLogError: there is no such partition.
            BrokerError: the broker does not answer, or a topic or a right is missing.
        """
        topic = topic_name(settings.topic_prefix, COMMANDS)
        administration = Administration(settings, _ANSWER_TIMEOUT_S)
        count = administration.require(use_of_topics("nodes", settings.topic_prefix))[topic]
        consumer = Consumer(
            {
                **reader(settings, f"millrace-executor-{settings.node}"),
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                **OpenTransactions(_log).settings(),
            },
            logger=_log,
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
        self._consumer.assign([TopicPartition(self.topic, self.partition, next_offset)])

    def read(self, timeout_s: float) -> list[CommandRecord]:
        """Return the next records; wait only for the first one.

        Raises:
            KafkaException: reading cannot continue.
        """
        records = []
        message = self._consumer.poll(timeout_s)
        while message is not None:
            error = message.error()
            if error is None:
                offset = message.offset()
                assert offset is not None, "a record that was read has one"
                records.append(CommandRecord(offset, message.value()))
            else:
                self._on_error(error)
            if len(records) == _MAX_RECORDS_AT_ONCE:
                break
            message = self._consumer.poll(0)
        return records

    def close(self) -> None:
        self._consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self.caught_up = True
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            pass  # the client looks for a coordinator, which is not needed here
        elif error.fatal() or error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ):
            raise KafkaException(error)
        else:
            _log.warning("commands unread topic=%s error=%s; tried again", self.topic, error.str())
