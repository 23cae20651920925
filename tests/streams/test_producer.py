"""Reports of a producer about records that the broker does not confirm."""

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.kafka_connection import KafkaConnection
from streams.kafka.producer import ConfirmedProducer
from streams.kafka.records import SentRecord

RECORD = SentRecord("t", None, b"")


def producer(**settings: object) -> ConfirmedProducer:
    """Return a producer whose broker does not run."""
    silent = logging.Logger("silent", logging.CRITICAL + 1)
    return ConfirmedProducer(
        KafkaConnection(bootstrap_servers="127.0.0.1:1"), "tests", 0.2, silent, **settings
    )


def test_flush_counts_unconfirmed_records() -> None:
    made = producer()
    made.send(RECORD)
    made.send(RECORD)
    assert made.flush(0.01) == made.unconfirmed == 2
    assert made.fault is None


def test_the_first_fault_names_its_topic_and_error() -> None:
    made = producer()
    made.send(RECORD)
    assert made.flush(10.0) == 0
    assert made.fault is not None
    assert (made.fault.topic, made.fault.error.code()) == ("t", KafkaError._MSG_TIMED_OUT)


def test_fault_with_own_callback_is_left_to_it() -> None:
    made, faults = producer(), []
    made.send(RECORD, lambda error, _message: faults.append(error.code()))
    made.flush(10.0)
    assert (faults, made.fault) == ([KafkaError._MSG_TIMED_OUT], None)


def test_record_above_limit_is_refused_at_once() -> None:
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer(message_max_bytes=1_000).send(SentRecord("t", None, bytes(2_000)))
