"""Records of partitions, given ones or those that a group assigns: committed records, in order."""

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streams.kafka.configuration import Configuration
from streams.kafka.records import Partition, ReadRecord, read_record
from streams.kafka.transactions import OpenTransactions

_LASTING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class UnreadTopicError(KafkaException):
    """A topic cannot be read any more."""

    def __init__(self, topic: str, error: KafkaError) -> None:
        super().__init__(error)
        self.topic = topic
        self.error = error


class RecordConsumer:
    """Reads partitions from given offsets on, or shares those of a topic with its group.

    Attributes:
        client: the client, for queries.
        transactions: open transactions that hold its partitions back.
        ended: offset at which the end of each partition was last reached since `assign`, where the
            configuration reports ends.
    """

    def __init__(
        self, configuration: Configuration, log: logging.Logger, *, repeats_requests: bool = True
    ) -> None:
        """Connect; `assign` or `subscribe` begins to read.

        Args:
            repeats_requests: whether errors that may pass are logged and the request repeated, or raised.

        Raises:
            KafkaException: the configuration is invalid.
        """
        self._log = log
        self._repeats_requests = repeats_requests
        self._is_member = False
        self.transactions = OpenTransactions(log)
        self.client = Consumer({**configuration, **self.transactions.settings()}, logger=log)
        self.ended: dict[Partition, int] = {}

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Read these partitions, each from an offset on."""
        self.ended.clear()
        self.client.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])

    def subscribe(self, topic: str) -> None:
        """Read the partitions of a topic that the group assigns, each from its committed offset on."""
        self._is_member = True
        self.client.subscribe([topic])

    def read(self, timeout_s: float, most: int) -> list[ReadRecord]:
        """Return the next records, at most `most`, after waiting for the first for at most `timeout_s`.

        Raises:
            UnreadTopicError: reading cannot continue.
        """
        first = self.client.poll(timeout_s)
        if first is None:
            return []
        messages = [first, *(self.client.consume(most - 1, 0) if most > 1 else ())]
        return [record for message in messages if (record := self._record(message)) is not None]

    def pause(self) -> None:
        """Receive no records of the partitions assigned at present, and remain a member of the group."""
        self.client.pause(self.client.assignment())

    def resume(self) -> None:
        """End `pause`."""
        self.client.resume(self.client.assignment())

    def acknowledge(self, record: ReadRecord) -> None:
        """Commit the offset after a record, unless its partition has moved to another member."""
        try:
            self.client.store_offsets(offsets=[TopicPartition(*record.place, record.offset + 1)])
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                raise

    def close(self) -> None:
        """Close the connection, and leave the group."""
        self.client.close()

    def _record(self, message: Any) -> ReadRecord | None:
        error = message.error()
        if error is None:
            return read_record(message)
        if error.code() == KafkaError._PARTITION_EOF:
            self.ended[Partition(message.topic(), message.partition())] = message.offset()
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._is_member:
            pass  # the client requests a coordinator, which is not needed here
        elif not self._repeats_requests or error.fatal() or error.code() in _LASTING:
            raise UnreadTopicError(message.topic(), error)
        else:
            self._log.warning("topic unread topic=%s error=%s; tried again", message.topic(), error.str())
        return None
