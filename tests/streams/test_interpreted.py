"""Interpreted, compiled, and in a process that changes over in the middle, equal bytes are decided."""

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


def test_machine_code_decides_the_golden_ledger(compiled):
    assert compiled.chains["golden"] == CHAIN.read_text().strip()
    assert compiled.interpreted == (0, 0)


def test_the_interpreter_decides_the_same(compiled):
    interpreted = decided("interpreted")
    assert interpreted.chains == compiled.chains
    assert min(interpreted.interpreted) > 0


def test_change_over_decides_the_same(compiled):
    changing = decided("changing")
    assert changing.chains == compiled.chains
    before, after = changing.interpreted
    assert before > 0
    assert after == 0


def test_worker_awaits_kernels_for_large_zones():
    nodes = tuple(Node(id=f"n{number}", gpu_type="fast", tariff="t") for number in range(100))
    assert not awaits_kernels(zone(nodes=nodes, horizon_slots=150))
    assert awaits_kernels(zone(nodes=nodes, horizon_slots=151))
    assert not awaits_kernels(elastic_zone(1, scheme="lyra"))
    assert awaits_kernels(elastic_zone(1, scheme="pollux"))
