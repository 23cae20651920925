"""What is asked of a broker about its topics."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from infra.kafka.client import admin_client
from infra.kafka.errors import BrokerError, TopicError
from schemas.topics import TopicSpec

_POLL_INTERVAL_S = 0.05

# A new partition's leader is known a moment before it leads.
_LEADER_ERRORS = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)

_Answer = TypeVar("_Answer")


class Administration:
    """Kafka's admin client, with answers instead of futures and errors that name the broker.

    All calls together have `timeout_s`. Each raises BrokerError when the broker does not answer.
    """

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin: AdminClient = admin_client(bootstrap_servers)
        self._deadline_s = time.monotonic() + timeout_s

    def metadata(self) -> dict[str, TopicMetadata]:
        """Every topic of the cluster by name."""
        try:
            topics: dict[str, TopicMetadata] = self._admin.list_topics(timeout=self._left_s()).topics
        except KafkaException as error:
            raise self._unanswered(error) from error
        return topics

    def create(self, specs: Iterable[TopicSpec]) -> None:
        """Create topics, with the broker's default replication; one that exists by now is left alone."""
        new = [
            NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=-1, config=spec.config())
            for spec in specs
        ]
        for name, created in self._admin.create_topics(new, request_timeout=self._left_s()).items():
            try:
                created.result(self._left_s())
            except TimeoutError as error:
                raise self._unanswered(error) from error
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise TopicError(
                        f"The broker at {self.bootstrap_servers} did not create topic {name} "
                        f"({error.args[0].str()}): see its log, and whether you may create topics"
                    ) from error

    def await_topics(self, names: set[str]) -> dict[str, TopicMetadata]:
        """Wait until every partition of the topics has a leader, so that their users find them."""
        while True:
            found = self.metadata()
            if all(name in found and _has_leaders(found[name]) for name in names):
                return found
            if time.monotonic() >= self._deadline_s:
                raise TopicError(
                    f"Topics at {self.bootstrap_servers} were created and did not get a leader in time: "
                    "see the broker's log"
                )
            time.sleep(_POLL_INTERVAL_S)

    def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Every setting of each topic, by the topic's name."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:  # the client refuses an empty request
            return {}
        answers = self._admin.describe_configs(resources, request_timeout=self._left_s())
        return {
            resource.name: {setting: entry.value for setting, entry in self._result(answer).items()}
            for resource, answer in answers.items()
        }

    def record_counts(self, topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
        """How many offsets lie between the ends of each topic's partitions."""
        while True:
            try:
                return self._record_counts(topics)
            except KafkaException as error:
                unled = error.args[0].code() in _LEADER_ERRORS
                if not unled or time.monotonic() >= self._deadline_s:
                    raise self._unanswered(error) from error
            except TimeoutError as error:
                raise self._unanswered(error) from error
            time.sleep(_POLL_INTERVAL_S)

    def _record_counts(self, topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
        counts = dict.fromkeys(topics, 0)
        for end, sign in ((OffsetSpec.latest(), 1), (OffsetSpec.earliest(), -1)):
            request = {
                TopicPartition(name, partition): end
                for name, topic in topics.items()
                for partition in topic.partitions
            }
            if request:  # the client refuses an empty one
                for partition, answer in self._admin.list_offsets(
                    request, request_timeout=self._left_s()
                ).items():
                    counts[partition.topic] += sign * answer.result(self._left_s()).offset
        return counts

    def _result(self, answer: "Future[_Answer]") -> _Answer:
        try:
            return answer.result(self._left_s())
        except (KafkaException, TimeoutError) as error:
            raise self._unanswered(error) from error

    def _left_s(self) -> float:
        # Not zero: to the client that means no limit.
        return max(self._deadline_s - time.monotonic(), 0.1)

    def _unanswered(self, error: Exception) -> BrokerError:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "timed out"
        return BrokerError(
            f"The Kafka broker at {self.bootstrap_servers} does not answer ({reason}): "
            "start it, or correct MILLRACE_BOOTSTRAP_SERVERS"
        )


def _has_leaders(topic: TopicMetadata) -> bool:
    return bool(topic.partitions) and all(partition.leader >= 0 for partition in topic.partitions.values())
