"""The log that a command uses."""

from dataclasses import dataclass

from schemas.kafka_connection import KafkaConnection
from schemas.topics import dead_letter_name, topic_name
from streams.kafka.administration import Administration
from streams.kafka.faults import UnansweredError

ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """A Kafka cluster and the topics of one deployment on it."""

    kafka: KafkaConnection
    prefix: str

    def topic(self, name: str) -> str:
        """Return the full name of a topic."""
        return topic_name(self.prefix, name)

    def dead_letters(self, name: str) -> str:
        """Return the full name of the topic of a topic's rejected records."""
        return dead_letter_name(self.topic(name))

    def check(self) -> None:
        """Check that the cluster answers.

        Raises:
            BrokerError: the cluster does not answer, or refuses the connection.
        """
        try:
            Administration(self.kafka, ANSWER_TIMEOUT_S).await_broker()
        except UnansweredError as error:
            raise UnansweredError(f"{error}: start one with `millrace up`, or name yours") from error
