"""The view of what zones are: complete when a cell is first seen, and then what has changed."""

import json

from jsonschema import Draft202012Validator

from schemas.changes import NodeLent
from schemas.documents import json_schemas
from schemas.view_records import ZoneState
from streams.worker.publication import ZoneStates
from tests.support.cells import Bench, tick
from tests.support.loans import lending_cell, offered, reported


def sent_states(states: ZoneStates, bench: Bench, decided: int = 0) -> list[ZoneState]:
    """Return the states sent because of the decisions from `decided` on; each record is valid under the
    schema."""
    records = list(states.records(bench.cell, bench.decisions[decided:]))
    validator = Draft202012Validator(json_schemas()[ZoneState.TYPE])
    for record in records:
        assert record.topic == "t.zones.state"
        validator.validate(json.loads(record.value))
    found = [ZoneState.model_validate_json(record.value) for record in records]
    assert [record.key for record in records] == [f"{one.cell}/{one.zone.id}".encode() for one in found]
    return found


def bench_of_loans() -> Bench:
    bench = Bench()
    bench.send(lending_cell())
    return bench


def test_zones_of_cell_are_published_once() -> None:
    bench, states = bench_of_loans(), ZoneStates("t")
    assert [state.zone for state in sent_states(states, bench)] == list(bench.cell.configuration.zones)
    decided = len(bench.decisions)
    bench.send(tick(0))
    assert sent_states(states, bench, decided) == []
    states.forget()
    assert len(sent_states(states, bench)) == len(bench.cell.configuration.zones)


def test_only_operator_loans_change_zone_state() -> None:
    bench, states = bench_of_loans(), ZoneStates("t")
    bench.send(tick(0), reported(0.1))
    sent_states(states, bench)
    decided = len(bench.decisions)
    bench.send(offered("s9"))
    assert "s9" in bench.cell.nodes.loans
    assert sent_states(states, bench, decided) == []
    decided = len(bench.decisions)
    bench.send(NodeLent(cell="c", node="s1", zone="z"))
    (state,) = sent_states(states, bench, decided)
    assert (state.zone.id, state.elsewhere) == ("inf", ("s1",))
