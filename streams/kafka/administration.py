"""Queries to a broker about itself and its topics."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    TopicDescription,
    TopicMetadata,
    UserScramCredentialUpsertion,
)

from schemas.access import Operation
from schemas.kafka_connection import KafkaConnection
from streams.kafka.configuration import administrator
from streams.kafka.faults import (
    LEADER_ERRORS,
    BrokerError,
    ConnectionFaults,
    TopicError,
    UnansweredError,
    denial,
    described_error,
)

_POLL_INTERVAL_S = 0.05
_SCRAM_ITERATIONS = 4_096
"""Kafka's minimum. The passwords are random, so more iterations would not add security."""
_ASK_TIMEOUT_S = 0.5
_ASK_FOR_GROUP_S = 5.0
_PASSING = LEADER_ERRORS | {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT}
"""Errors that a broker may answer shortly after its start."""

_Answer = TypeVar("_Answer")


class Administration:
    """Kafka's admin client, with answers instead of futures and errors that name the broker.

    All calls together have `timeout_s`. Each raises BrokerError if the broker does not answer, refuses the
    client, or denies it a right.
    """

    def __init__(self, connection: KafkaConnection, timeout_s: float) -> None:
        """Connect lazily.

        Raises:
            BrokerError: the client cannot be created, because of an invalid file.
        """
        self.connection = connection
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._faults = ConnectionFaults(connection)
        configuration: dict[str, Any] = {**administrator(connection), "error_cb": self._faults.note}
        try:
            self.client = AdminClient(configuration)
        except KafkaException as error:
            raise BrokerError(
                f"No client for Kafka at {connection.bootstrap_servers} can be created: {error.args[0].str()}"
            ) from None

    def await_broker(
        self, check_running: Callable[[], None] = lambda: None, *, starting: bool = False
    ) -> None:
        """Return as soon as a broker answers. All other methods that need a broker call this first.

        Args:
            check_running: called repeatedly; an exception of it ends the wait.
            starting: whether the broker is starting, and so may drop connections for a while.

        Raises:
            UnansweredError: no broker answers in time.
            BrokerError: a broker refuses this client; raised at once.
        """
        while True:
            check_running()
            try:
                if self.client.list_topics(timeout=min(_ASK_TIMEOUT_S, self._left_s())).brokers:
                    return
            except KafkaException as error:
                reason = error.args[0].str()
            else:
                reason = "no broker has joined the cluster"
            self.client.poll(0)  # calls `error_cb` with the reason, if any
            fault = self._faults.lasting or (None if starting else self._faults.likely)
            if fault is not None:
                raise BrokerError(fault)
            if time.monotonic() >= self._deadline_s:
                raise UnansweredError(
                    f"No Kafka broker answers at {self.connection.bootstrap_servers} within "
                    f"{self._timeout_s:g} s ({self._faults.reason or reason})"
                )

    def metadata(self) -> dict[str, TopicMetadata]:
        """Return every topic of the cluster that the client may describe, by name."""
        self.await_broker()
        try:
            topics: dict[str, TopicMetadata] = self.client.list_topics(timeout=self._left_s()).topics
        except KafkaException as error:
            raise self._unanswered(error, "list topics") from error
        return topics

    def cluster_id(self) -> str:
        """Return the id of the cluster; empty without one."""
        described = self.result(
            self.client.describe_cluster(request_timeout=self._left_s()), "see the cluster"
        )
        return described.cluster_id or ""

    def require(
        self, topics: Mapping[str, Collection[Operation]], groups: Collection[str] = ()
    ) -> dict[str, int]:
        """Check that topics exist and that the client has the needed rights; return their partition counts.

        Args:
            topics: needed rights by the topic's full name, READ or WRITE or both.
            groups: consumer groups that the client joins.

        Raises:
            TopicError: topics are missing; the message names all.
            BrokerError: the broker does not answer, or denies a right.
        """
        self.await_broker()
        missing, denied, partitions = [], [], {}
        for name, found in self._described(topics).items():
            if isinstance(found, KafkaError):
                if found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    missing.append(name)
                else:
                    denied.append(name)
                continue
            partitions[name] = len(found.partitions)
            allowed = {operation.name for operation in found.authorized_operations or ()}
            # A broker without authorisation may omit them.
            if allowed and not set(topics[name]) <= allowed:
                denied.append(name)
        if missing:
            raise TopicError(f"topics are missing, create them first: {', '.join(sorted(missing))}")
        if denied:
            action = "; ".join(f"{_verbs(topics[name])} topic {name}" for name in sorted(denied))
            raise BrokerError(
                described_error(self.connection, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), action)
            )
        self._require_groups(groups)
        return partitions

    def create(self, topics: Iterable[NewTopic]) -> None:
        """Create topics; one that already exists is left unchanged.

        Raises:
            TopicError: the broker refuses a topic.
        """
        servers = self.connection.bootstrap_servers
        for name, created in self.client.create_topics(list(topics), request_timeout=self._left_s()).items():
            try:
                created.result(self._left_s())
            except TimeoutError as error:
                raise self._unanswered(error, f"create topic {name}") from error
            except KafkaException as error:
                denied = denial(self.connection, error.args[0], f"create topic {name}")
                if denied is not None:
                    raise TopicError(denied) from None
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise TopicError(
                        f"The broker at {servers} did not create topic {name} ({error.args[0].str()}): "
                        "see its log"
                    ) from error

    def await_topics(self, names: Collection[str]) -> dict[str, TopicMetadata]:
        """Wait until every partition of the topics has a leader, so that clients can use them."""
        while True:
            found = self.metadata()
            if all(name in found and _has_leaders(found[name]) for name in names):
                return found
            if time.monotonic() >= self._deadline_s:
                raise TopicError(
                    f"Topics at {self.connection.bootstrap_servers} were created and did not get a leader in "
                    "time: see the broker's log"
                )
            time.sleep(_POLL_INTERVAL_S)

    def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return every setting of each topic, by the topic's name."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:  # the client refuses an empty request
            return {}
        answers = self.client.describe_configs(resources, request_timeout=self._left_s())
        return {
            resource.name: {
                setting: entry.value
                for setting, entry in self.result(
                    answer, f"see the configuration of topic {resource.name}"
                ).items()
            }
            for resource, answer in answers.items()
        }

    def set_password(self, user: str, password: str) -> None:
        """Set the password of a user of SCRAM-SHA-512 in the cluster."""
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _SCRAM_ITERATIONS)
        change = UserScramCredentialUpsertion(user, scram, password.encode())
        for answer in self.client.alter_user_scram_credentials(
            [change], request_timeout=self._left_s()
        ).values():
            self.result(answer, f"set the password of user {user}")

    def offset_counts(self, topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
        """Return the number of offsets between the ends of each topic's partitions, by topic."""
        while True:
            try:
                return self._offset_counts(topics)
            except KafkaException as error:
                unled = error.args[0].code() in LEADER_ERRORS
                if not unled or time.monotonic() >= self._deadline_s:
                    raise self._unanswered(error, "find the ends of topics") from error
            except TimeoutError as error:
                raise self._unanswered(error, "find the ends of topics") from error
            time.sleep(_POLL_INTERVAL_S)

    def result(self, answer: "Future[_Answer]", what: str) -> _Answer:
        """Return the broker's answer to a request, which `what` describes.

        Raises:
            BrokerError: the answer is an error, or late.
        """
        try:
            return answer.result(self._left_s())
        except (KafkaException, TimeoutError) as error:
            raise self._unanswered(error, what) from error

    def _described(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        """Return each topic's description; an error if it is unknown or the client may not describe it."""
        left, found = set(names), {}
        while left:
            request = TopicCollection(sorted(left))
            answers = self.client.describe_topics(
                request, include_authorized_operations=True, request_timeout=self._left_s()
            )
            for name, answer in answers.items():
                try:
                    found[name] = answer.result(self._left_s())
                except TimeoutError as error:
                    raise self._unanswered(error, f"look at topic {name}") from error
                except KafkaException as error:
                    reason: KafkaError = error.args[0]
                    unknown = reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                    if unknown or denial(self.connection, reason, "") is not None:
                        found[name] = reason
                    elif reason.code() not in _PASSING or time.monotonic() >= self._deadline_s:
                        raise self._unanswered(error, f"look at topic {name}") from error
            left -= found.keys()
            if left:
                time.sleep(_POLL_INTERVAL_S)
        return found

    def _require_groups(self, groups: Collection[str]) -> None:
        for group in groups:
            while True:
                # A broker may lose requests about groups after its start, so retry after 5 s.
                attempt_s = min(_ASK_FOR_GROUP_S, self._left_s())
                answers = self.client.describe_consumer_groups([group], request_timeout=attempt_s)
                try:
                    answers[group].result(attempt_s)
                except KafkaException as error:
                    denied = denial(self.connection, error.args[0], f"join group {group}")
                    if denied is not None:
                        raise BrokerError(denied) from None
                    # A group without members yet may be unknown.
                except TimeoutError as error:
                    if time.monotonic() >= self._deadline_s:
                        raise self._unanswered(error, f"find group {group}") from error
                    continue
                break

    def _offset_counts(self, topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
        counts = dict.fromkeys(topics, 0)
        ends = (OffsetSpec.latest(), 1), (OffsetSpec.earliest(), -1)  # type: ignore[no-untyped-call]
        for end, sign in ends:
            request = {
                TopicPartition(name, partition): end
                for name, topic in topics.items()
                for partition in topic.partitions
            }
            if request:  # the client refuses an empty one
                for partition, answer in self.client.list_offsets(
                    request, request_timeout=self._left_s()
                ).items():
                    counts[partition.topic] += sign * answer.result(self._left_s()).offset
        return counts

    def _left_s(self) -> float:
        # Not zero, which means no limit.
        return max(self._deadline_s - time.monotonic(), 0.1)

    def _unanswered(self, error: Exception, what: str) -> BrokerError:
        if isinstance(error, KafkaException):
            denied = denial(self.connection, error.args[0], what)
            if denied is not None:
                return BrokerError(denied)
        reason = error.args[0].str() if isinstance(error, KafkaException) else "timed out"
        return UnansweredError(
            f"The Kafka broker at {self.connection.bootstrap_servers} does not answer ({reason}): "
            "start it, or correct MILLRACE_BOOTSTRAP_SERVERS"
        )


def _verbs(operations: Collection[Operation]) -> str:
    return " and ".join(operation.lower() for operation in sorted(operations))


def _has_leaders(topic: TopicMetadata) -> bool:
    return bool(topic.partitions) and all(partition.leader >= 0 for partition in topic.partitions.values())
