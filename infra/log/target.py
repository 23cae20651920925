"""Which log a command speaks to."""

from dataclasses import dataclass

from infra.kafka.client import wait_until_answering
from infra.kafka.errors import BrokerError
from schemas.topics import dead_letter_name, topic_name

ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """A Kafka cluster and the topics of one deployment on it."""

    bootstrap_servers: str
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
            BrokerError: it does not.
        """
        try:
            wait_until_answering(self.bootstrap_servers, ANSWER_TIMEOUT_S)
        except BrokerError as error:
            raise BrokerError(f"{error}: start one with `millrace up`, or name yours") from error
