"""The same bytes are decided interpreted, compiled, and by a process that changes over in the middle."""

import pytest

from schemas.cells import Node
from streams.worker.kernels import awaits_kernels
from tests.streams.golden.ledger import CHAIN
from tests.support.cells import zone
from tests.support.elastic import elastic_zone
from tests.support.interpreted import decided


@pytest.fixture(scope="module")
def compiled():
    return decided("compiled")


@pytest.mark.parametrize("mode", ["interpreted", "changing"])
def test_machine_code_decides_as_the_interpreter_does(compiled, mode):
    assert compiled["golden"] == CHAIN.read_text().strip()
    assert decided(mode) == compiled


def test_a_worker_waits_for_its_kernels_where_the_interpreter_would_take_long():
    nodes = tuple(Node(id=f"n{number}", gpu_type="fast", tariff="t") for number in range(100))
    assert not awaits_kernels(zone(nodes=nodes, horizon_slots=150))
    assert awaits_kernels(zone(nodes=nodes, horizon_slots=151))
    assert not awaits_kernels(elastic_zone(1, scheme="lyra"))
    assert awaits_kernels(elastic_zone(1, scheme="pollux"))
