"""The hash chain covers every byte of events and decisions; a long event is hashed once."""

import hashlib

import pytest

from schemas.cells import Node
from schemas.changes import ZoneConfigured
from streams.cell.chain import LONGEST_LINE_BYTES
from streams.replay.replay import DecisionRecord, verify
from tests.support.cells import Bench, configuration, zone

CHAIN_SUFFIX_BYTES = len(',"chain":""}') + 64


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=32).digest()


@pytest.mark.parametrize("nodes", [2, 400], ids=["short event", "long event"])
def test_each_decision_covers_the_event_and_those_before(nodes: int) -> None:
    bench = Bench()
    bench.send(configuration())
    chain, known = bench.cell.chain, len(bench.decisions)
    joining = tuple(Node(id=f"n{number}", gpu_type="fast", tariff="t") for number in range(nodes))
    bench.send(ZoneConfigured(cell="c", zone=zone(id="other", nodes=joining)))
    line = bench.ledger[-1].canonical
    assert (len(line) > LONGEST_LINE_BYTES) == (nodes > 2)
    assert len(bench.decisions) - known == 2 * nodes + 1
    for decision in bench.decisions[known:]:
        body = decision.canonical[:-CHAIN_SUFFIX_BYTES]
        chain = digest(chain + (line if nodes == 2 else digest(line)) + body)
        assert decision.chain == chain.hex()

    log = [DecisionRecord(each.canonical, str(place)) for place, each in enumerate(bench.decisions)]
    assert verify(bench.ledger, log).ok
