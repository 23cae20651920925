"""A node's partition is the one that Kafka's own partitioner gives its id."""

import random
import string

import pytest
from aiokafka.partitioner import DefaultPartitioner

from streams.kafka.records import key_partition


@pytest.mark.parametrize("partitions", [1, 2, 16, 17, 1_000])
def test_it_is_that_of_kafkas_default_partitioner(partitions: int) -> None:
    draw = random.Random(partitions)
    everywhere = list(range(partitions))
    for length in range(1, 129):
        node = "".join(draw.choices(string.ascii_letters + string.digits + "._-", k=length))
        expected = DefaultPartitioner()(node.encode(), everywhere, everywhere)
        assert key_partition(node, partitions) == expected


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        key_partition("n1", 0)
