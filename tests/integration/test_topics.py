from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from infra.topics import describe_topics, ensure_topics
from schemas.kafka_connection import KafkaConnection
from schemas.topics import INPUT_MAX_MESSAGE_BYTES, INPUTS, TopicSpec, topics
from streams.kafka.faults import BrokerError, TopicError
from tests.integration.kafka_records import send, values


def at(bootstrap_servers: str) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=bootstrap_servers)


@pytest.fixture
def specs(topic_prefix: str) -> tuple[TopicSpec, ...]:
    return topics(topic_prefix, partitions=1, command_partitions=2)


def test_topics_are_created_as_specified(kafka: str, topic_prefix: str, specs: tuple[TopicSpec, ...]) -> None:
    ensure_topics(at(kafka), specs)
    rows = describe_topics(at(kafka), topic_prefix)
    assert [
        (
            row.name,
            row.partitions,
            row.cleanup_policy,
            row.retention_ms,
            row.max_message_bytes,
            row.compression_type,
            row.records,
        )
        for row in rows
    ] == sorted(
        (
            spec.name,
            spec.partitions,
            spec.cleanup_policy,
            spec.retention_ms,
            spec.max_message_bytes,
            spec.compression_type,
            0,
        )
        for spec in specs
    )


def test_ensuring_twice_creates_only_missing_topics(
    kafka: str, topic_prefix: str, specs: tuple[TopicSpec, ...]
) -> None:
    ensure_topics(at(kafka), specs[:2])
    assert send(kafka, specs[0].name, b"kept") is None
    ensure_topics(at(kafka), specs)
    ensure_topics(at(kafka), specs)
    rows = describe_topics(at(kafka), topic_prefix)
    assert {row.name: row.records for row in rows} == {spec.name: spec is specs[0] for spec in specs}


def test_every_difference_is_named_and_nothing_is_created(
    kafka: str, topic_prefix: str, specs: tuple[TopicSpec, ...]
) -> None:
    first, second, third = specs[:3]
    ensure_topics(at(kafka), [first, second])
    changed = [
        replace(first, partitions=3, max_message_bytes=1000, retention_ms=60_000),
        replace(second, cleanup_policy="compact", compression_type="producer", retention_bytes=1_000_000),
        third,
    ]
    with pytest.raises(TopicError) as refused:
        ensure_topics(at(kafka), changed)
    for difference in (
        f"{first.name}: partitions is 1, expected 3",
        f"{first.name}: max.message.bytes is {INPUT_MAX_MESSAGE_BYTES}, expected 1000",
        f"{first.name}: retention.ms is 604800000, expected 60000",
        f"{second.name}: cleanup.policy is delete, expected compact",
        f"{second.name}: compression.type is uncompressed, expected producer",
        f"{second.name}: retention.bytes is -1, expected 1000000",
    ):
        assert difference in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert [row.name for row in describe_topics(at(kafka), topic_prefix)] == sorted([first.name, second.name])


def test_a_refused_creation_names_the_topic(kafka: str, topic_prefix: str) -> None:
    spec = TopicSpec(f"{topic_prefix}.jobs", partitions=1, retention_ms=-5)
    with pytest.raises(TopicError, match=rf"did not create topic {topic_prefix}\.jobs .*retention\.ms"):
        ensure_topics(at(kafka), [spec])


@pytest.mark.parametrize(
    "ask", [lambda kafka: ensure_topics(kafka, topics(), 0.3), lambda kafka: describe_topics(kafka, "x", 0.3)]
)
def test_missing_broker_is_one_line_with_address(ask: Callable[[KafkaConnection], object]) -> None:
    with pytest.raises(BrokerError, match=r"^No Kafka broker answers at 127\.0\.0\.1:1 within 0\.3 s .*$"):
        ask(at("127.0.0.1:1"))


def test_an_unknown_topic_is_not_created_by_use(kafka: str, topic_prefix: str) -> None:
    error = send(kafka, f"{topic_prefix}.unknown", b"", **{"message.timeout.ms": 500})
    assert error is not None
    assert f"{topic_prefix}.unknown" not in AdminClient({"bootstrap.servers": kafka}).list_topics().topics


def test_oversized_record_reaches_intake_up_to_limit(kafka: str, specs: tuple[TopicSpec, ...]) -> None:
    topic = specs[list(INPUTS).index("jobs")].name
    ensure_topics(at(kafka), specs)
    unlimited = {"message.max.bytes": 2 * INPUT_MAX_MESSAGE_BYTES}
    largest = b" " * (INPUT_MAX_MESSAGE_BYTES - 100)  # less what the batch and the record add
    assert send(kafka, topic, largest, **unlimited) is None
    too_large = send(kafka, topic, b" " * INPUT_MAX_MESSAGE_BYTES, **unlimited)
    assert too_large is not None
    assert too_large.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert values(kafka, topic, 1) == [largest]


@pytest.mark.parametrize(
    ("codec", "size_bytes"),
    [
        ("gzip", 2 * INPUT_MAX_MESSAGE_BYTES),
        ("gzip", 100_000_000),
        ("zstd", 2 * INPUT_MAX_MESSAGE_BYTES),
        ("zstd", 300_000_000),
    ],
)
def test_compressed_bomb_is_refused_by_broker(
    kafka: str, specs: tuple[TopicSpec, ...], codec: str, size_bytes: int
) -> None:
    topic = specs[list(INPUTS).index("jobs")].name
    ensure_topics(at(kafka), specs)
    bomb = b'{"name": "' + b" " * size_bytes
    refusal = send(
        kafka,
        topic,
        bomb,
        **{
            "compression.type": codec,
            "compression.level": 1,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        },
    )
    assert refusal is not None
    # What fits into the broker's heap is measured, and the rest ends in its OutOfMemoryError.
    assert refusal.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.UNKNOWN)
    assert send(kafka, topic, b"next") is None
    assert values(kafka, topic, 1) == [b"next"]
