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
        """The full name of a topic."""
        return topic_name(self.prefix, name)

    def dead_letters(self, name: str) -> str:
        """The full name of the topic that takes the refused records of a topic."""
        return dead_letter_name(self.topic(name))

    def check(self) -> None:
        """Return if the cluster answers.

        Raises:
            BrokerError: it does not, or does not let us in.
        """
        try:
            Administration(self.kafka, ANSWER_TIMEOUT_S).await_broker()
        except UnansweredError as error:
            raise UnansweredError(f"{error}: start one with `millrace up`, or name yours") from error
