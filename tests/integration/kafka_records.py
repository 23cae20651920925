"""Writing to and reading from a real broker, as the tests of the broker need it."""

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

TIMEOUT_S = 60


def ordered_producer(bootstrap_servers: str) -> Producer:
    """Return a producer that keeps the order of records also where the broker refuses some at first, as it
    does while a new topic gets its leader."""
    return Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "log_level": 0})


def send(bootstrap_servers: str, topic: str, value: bytes, **producer_settings: object) -> KafkaError | None:
    """Send one record to partition 0 and return the error that the broker answered with, if any."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0, **producer_settings})
    errors: list[KafkaError | None] = []
    producer.produce(topic, value, partition=0, on_delivery=lambda error, record: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0]


def values(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    """Return the first `count` records of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [record.value() or b"" for record in consumer.consume(count, TIMEOUT_S)]
    finally:
        consumer.close()
