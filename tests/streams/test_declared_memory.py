"""Memory that a task is counted with, declared or measured, and the effect of too small a declaration."""

import pytest

from schemas.cells import BaseDimensions, ThroughputRow
from schemas.decisions import JobAdmitted, JobQuoted, JobRefunded, JobRejected
from schemas.lora import LoraHyperparameters
from schemas.lora_commands import MEMORY_TOLERANCE_GIB, SlotAssigned
from tests.support.cells import (
    UNIT,
    Bench,
    CheckedBench,
    ask,
    bid,
    failed,
    nodes_by_slot,
    progressed,
    started,
    tick,
    zone,
)

DIMENSIONS = BaseDimensions(
    hidden_features=2_048,
    intermediate_features=8_192,
    key_value_features=512,
    layers=16,
    vocabulary_size=128_000,
)
LARGE = LoraHyperparameters(rank=16, batch_size=4, sequence_length=512)
"""Takes 2.94 GiB at least."""


@pytest.fixture
def bench() -> Bench:
    return Bench.configured(zones=(zone(base_dimensions=DIMENSIONS),))


def test_understated_memory_is_rejected_with_minimum(bench: Bench) -> None:
    rejected, quoted = bench.send(
        bid(memory_gib=2.0, hyperparameters=LARGE), ask(memory_gib=2.0, hyperparameters=LARGE)
    )
    assert isinstance(rejected, JobRejected)
    assert isinstance(quoted, JobQuoted)
    assert rejected.reason == quoted.reason == "memory_understated"
    least_gib = rejected.facts["least_gib"]
    (admitted,) = bench.send(bid("k", memory_gib=least_gib, hyperparameters=LARGE))
    assert isinstance(admitted, JobAdmitted)


def test_declared_memory_counts_without_known_sizes() -> None:
    (admitted,) = Bench.configured().send(bid(memory_gib=2.0, hyperparameters=LARGE))
    assert isinstance(admitted, JobAdmitted)


def row(gpu_type: str, memory_gib: float) -> ThroughputRow:
    return ThroughputRow(
        gpu_type=gpu_type,
        rank=64,
        batch_size=8,
        sequence_length=512,
        samples_per_s=5.0,
        memory_gib=memory_gib,
    )


def bench_with(*rows: ThroughputRow, **changes) -> CheckedBench:
    return CheckedBench.configured(zones=(zone(throughput=rows, **changes),))


@pytest.mark.parametrize(
    ("declared", "rows", "counted"),
    [
        (None, (row("fast", 2.0),), (2.0, "row")),
        (2.5, (row("fast", 2.0),), (2.5, "declared")),
        (2.0, (row("fast", 2.0),), (2.0, "declared")),
        (1.9, (row("fast", 2.0),), (2.0, "raised_to_row")),
        (2.0 / 1024, (row("fast", 2.0),), (2.0, "raised_to_row")),
        (1.5, (row("fast", 1.0), row("slow", 3.0)), (3.0, "raised_to_row")),
        (1.5, (), (1.5, "declared")),
        (0.001, (), (0.0625, "declared")),
    ],
)
def test_offer_names_memory_and_its_source(declared, rows, counted) -> None:
    bench = bench_with(*rows)
    (quoted,) = bench.send(ask(memory_gib=declared))
    (admitted,) = bench.send(bid(memory_gib=declared))
    memory = admitted.evidence.offer.memory
    assert (memory.gib, memory.source) == counted
    assert quoted.evidence.offer.memory == memory
    free = bench.zone.auctioneer.market.free_gib
    assert (free.max(axis=0) - free.min(axis=0)).max() == counted[0]


def test_understated_memory_pays_like_truth() -> None:
    prices = []
    for declared in (None, 3.0, 3.0 / 1024):
        bench = bench_with(row("fast", 3.0))
        for number in range(3):
            bench.send(bid(f"other{number}", memory_gib=4.0, work_samples=300))
        (admitted,) = bench.send(bid(memory_gib=declared, speed_samples_per_s={"fast": 5.0}))
        prices.append(admitted.evidence.offer.price)
    assert prices[0] == prices[1] == prices[2]
    assert prices[0].memory_micros > 0


def test_naming_fewer_types_makes_no_task_smaller() -> None:
    rows = row("fast", 1.0), row("slow", 3.0)
    (admitted,) = bench_with(*rows).send(bid(memory_gib=None, speed_samples_per_s={"fast": 5.0}))
    assert admitted.evidence.offer.memory.gib == 3.0


def test_row_counts_memory_of_sizes() -> None:
    bench = bench_with(row("fast", 3.0), base_dimensions=DIMENSIONS)
    (admitted,) = bench.send(bid(memory_gib=0.5, hyperparameters=LARGE.model_copy(update={"batch_size": 8})))
    assert admitted.evidence.offer.memory.gib == 3.0


@pytest.mark.parametrize(
    ("rows", "limit_gib"), [((), 2.0), ((row("slow", 1.0),), None), ((row("fast", 1.0),), None)]
)
def test_run_is_limited_to_declared_memory(rows, limit_gib) -> None:
    bench = bench_with(*rows)
    (admitted,) = bench.send(bid(memory_gib=2.0))
    first, _ = min(nodes_by_slot(admitted).items())
    assigned = next(o for o in bench.send(*map(tick, range(first + 1))) if isinstance(o, SlotAssigned))
    assert assigned.runs[0].memory_limit_gib == limit_gib


REPORTS = {
    "progress": lambda node, gib: progressed(node, 0, 5, complete=False).model_copy(
        update={"memory_gib": gib}
    ),
    "end": lambda node, gib: progressed(node, 0, 50).model_copy(update={"memory_gib": gib}),
    "failure": lambda node, gib: failed(node, 0, 0, True).model_copy(update={"memory_gib": gib}),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_run_above_declared_memory_ends_job(report) -> None:
    bench = bench_with()
    (admitted,) = bench.send(bid(memory_gib=2.0))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    refunded, *_ = bench.send(report(node, 2.5))
    assert isinstance(refunded, JobRefunded)
    assert refunded.reason == "memory_understated"
    assert refunded.facts == {"slot": 0, "node": node, "memory_gib": 2.5, "reserved_gib": 2.0}
    assert (refunded.refund_micros, refunded.retained_micros) == (3 * UNIT // 2, UNIT // 2)


@pytest.mark.parametrize(
    ("rows", "used_gib"),
    [
        ((), None),
        ((), 2.0 + MEMORY_TOLERANCE_GIB),
        ((row("fast", 2.0),), 5.0),
        ((row("fast", 1.0), row("slow", 1.0)), 5.0),
    ],
    ids=["not measured", "within the tolerance", "the zone's own measure", "more than the zone's measure"],
)
def test_other_run_above_memory_continues(rows, used_gib) -> None:
    bench = bench_with(*rows)
    (admitted,) = bench.send(bid(memory_gib=2.0))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    assert bench.send(progressed(node, 0, 50).model_copy(update={"memory_gib": used_gib})) == []
