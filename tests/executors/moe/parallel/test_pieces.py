"""Tensors are cut into micro-ops, and traces are read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executors.moe.parallel.experts import routes
from executors.moe.parallel.gradients import DEFAULT_PARTITION_BYTES, partition
from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord, part_bytes
from tests.support.micro_ops import overlaps, waited_behind

matrices = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, 5), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


@given(
    length=st.integers(0, 500), element_bytes=st.sampled_from([2, 4, 8]), partition_bytes=st.integers(8, 400)
)
def test_parts_are_ordered_even_and_few(length: int, element_bytes: int, partition_bytes: int) -> None:
    parts = partition(length, element_bytes, partition_bytes)
    assert [index for part in parts for index in part] == list(range(length))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) * element_bytes <= partition_bytes
    assert len(parts) == 1 or length > (len(parts) - 1) * (partition_bytes // element_bytes)


def test_bucket_of_70_mib_has_three_parts() -> None:
    assert len(partition(70 * 2**18, 4, DEFAULT_PARTITION_BYTES)) == 3


def test_a_partition_that_holds_no_element_is_refused() -> None:
    with pytest.raises(ValueError, match="a partition of 3 bytes holds no element of 4 bytes"):
        partition(10, 4, 3)


@pytest.mark.parametrize(
    ("size_bytes", "requested_bytes", "expected"),
    [
        (25 * 2**20, 30 * 2**20, 30 * 2**20),
        (3 * 2**30, 30 * 2**20, 30 * 2**20),
        (6_400, 200, 200),
        (6_400, 8, 100),
        (25 * 2**20, 8, 25 * 2**14),
        (3 * 2**30, 8, 2**20),
    ],
)
def test_parts_have_requested_size_within_limit(size_bytes: int, requested_bytes: int, expected: int) -> None:
    assert part_bytes(size_bytes, requested_bytes) == expected


@given(sent=matrices, received=matrices, chunks=st.integers(1, 4))
def test_chunks_keep_rows_and_sort_by_expert(
    sent: list[list[int]], received: list[list[int]], chunks: int
) -> None:
    to, of = torch.tensor(sent), torch.tensor(received)
    made = routes(to, of, chunks, torch.device("cpu"))
    rows = [route.rows if route.rows is not None else torch.arange(int(to.sum())) for route in made]
    assert torch.cat(rows).sort().values.tolist() == list(range(int(to.sum())))
    assert [sum(route.sent) for route in made] == [len(each) for each in rows]
    assert sum(route.counts for route in made).tolist() == of.sum(0).tolist()
    for chunk, route in enumerate(made):
        # Received tokens, by the sending rank and then by expert.
        experts = [
            expert
            for counts in received
            for expert, count in enumerate(counts)
            for _ in range(count * (chunk + 1) // chunks - count * chunk // chunks)
        ]
        assert sum(route.received) == len(experts)
        order = range(len(experts)) if route.order is None else route.order.tolist()
        assert sorted(order) == list(range(len(experts)))
        assert [experts[index] for index in order] == sorted(experts)


def record(
    kind: CollectiveKind, submitted_s: float, issued_s: float, completed_s: float, rank: int = 0
) -> MicroOpRecord:
    return MicroOpRecord(rank, kind, "", 0, submitted_s, issued_s, completed_s)


def test_overlap_spans_kinds_and_ranks() -> None:
    tokens = record(CollectiveKind.ALL_TO_ALL, 0.0, 1.0, 3.0)
    other_tokens = record(CollectiveKind.ALL_TO_ALL, 0.0, 2.0, 3.0)
    gradient = record(CollectiveKind.ALLREDUCE, 0.0, 2.0, 4.0, rank=1)
    later = record(CollectiveKind.ALLREDUCE, 0.0, 4.0, 5.0)
    found = overlaps([later, gradient, other_tokens, tokens])
    assert set(found) == {(tokens, gradient), (other_tokens, gradient)}
    assert len(found) == 2
    assert overlaps([tokens, later]) == []


def test_all_to_all_waits_behind_issued_allreduces() -> None:
    before, meanwhile = (
        record(CollectiveKind.ALLREDUCE, 0.0, 0.0, 1.0),
        record(CollectiveKind.ALLREDUCE, 0.0, 1.0, 3.0),
    )
    tokens = record(CollectiveKind.ALL_TO_ALL, 2.0, 3.0, 4.0)
    assert waited_behind([before, meanwhile, tokens]) == {tokens: 1}
