"""Questions to Kafka that fail with an error that passes."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.kafka.reader import retry_query

ASKING_S = 2.0


class Broker:
    """Fails with an error until a time; each answer takes two seconds of a clock that stands otherwise."""

    def __init__(self, error: int, until_s: float) -> None:
        self.error = error
        self.until_s = until_s
        self.now_s = 0.0

    def answer(self) -> str:
        self.now_s += ASKING_S
        if self.now_s < self.until_s:
            raise KafkaException(KafkaError(self.error))
        return "an answer"

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def asked(self, between: Callable[[], None] = lambda: None) -> str:
        return retry_query(self.answer, between, lambda: self.now_s, self.sleep)


def test_new_partition_may_lack_leader_for_30_s():
    assert Broker(KafkaError.NOT_LEADER_FOR_PARTITION, until_s=30.0).asked() == "an answer"


@pytest.mark.parametrize(
    ("error", "patience_s"),
    [
        (KafkaError.LEADER_NOT_AVAILABLE, 60.0),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 10.0),
        (KafkaError._TRANSPORT, 10.0),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 0.0),
    ],
)
def test_an_error_that_lasts_is_raised_in_time(error, patience_s):
    broker = Broker(error, until_s=1_000.0)
    with pytest.raises(KafkaException) as raised:
        broker.asked()
    assert raised.value.args[0].code() == error
    assert patience_s < broker.now_s <= patience_s + 2 * ASKING_S


def test_what_is_found_between_two_questions_ends_them():
    def refused() -> None:
        raise PermissionError

    broker = Broker(KafkaError.NOT_LEADER_FOR_PARTITION, until_s=30.0)
    with pytest.raises(PermissionError):
        broker.asked(refused)
    assert broker.now_s == ASKING_S
