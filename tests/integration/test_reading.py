"""Reading a topic to its end, and then on: on real Kafka no record is left out between the two."""

from infra.log.reader import LogReader
from infra.log.target import Target
from infra.topics import ensure_topics
from schemas.kafka_connection import KafkaConnection
from schemas.topics import INFERENCE, topics
from tests.integration.deployment import until
from tests.integration.kafka_records import ordered_producer


def test_records_arriving_at_end_are_read_afterwards(kafka: str, topic_prefix: str) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(topic_prefix, partitions=1, command_partitions=1))
    target = Target(connection, topic_prefix)
    topic = target.topic(INFERENCE)
    producer = ordered_producer(kafka)

    def send(*values: bytes) -> None:
        for value in values:
            producer.produce(topic, value)
        producer.flush()

    send(b"1", b"2")
    with LogReader(target, [topic], "beginning") as reader:
        send(b"3", b"4")
        assert [record.value for record in reader.to_end()] == [b"1", b"2"]
        send(b"5")
        later: list[bytes | None] = []

        def has_all() -> bool:
            later.extend(record.value for record in reader.poll(0.1))
            return len(later) >= 3

        until(has_all, "the later records")
        assert later == [b"3", b"4", b"5"]
