"""A bid may not declare less memory than its task must take, where the cell knows its base model's sizes."""

import pytest

from schemas.cells import BaseDimensions
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected
from schemas.lora import LoraHyperparameters
from tests.support.cells import Bench, ask, bid, zone

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


def test_a_bid_that_understates_is_rejected_and_told_what_would_do(bench: Bench) -> None:
    rejected, quoted = bench.send(
        bid(memory_gib=2.0, hyperparameters=LARGE), ask(memory_gib=2.0, hyperparameters=LARGE)
    )
    assert isinstance(rejected, JobRejected)
    assert isinstance(quoted, JobQuoted)
    assert rejected.reason == quoted.reason == "memory_understated"
    least_gib = float(rejected.detail.split("take at least ")[1].split()[0])
    (admitted,) = bench.send(bid("k", memory_gib=least_gib, hyperparameters=LARGE))
    assert isinstance(admitted, JobAdmitted)


def test_where_the_sizes_are_not_known_what_is_declared_is_taken() -> None:
    (admitted,) = Bench.configured().send(bid(memory_gib=2.0, hyperparameters=LARGE))
    assert isinstance(admitted, JobAdmitted)
