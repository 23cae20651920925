"""Changes to a cell, as if made in its file."""

import pytest

from infra.errors import CommandError
from infra.simulation.edits import Edits, NodeCount, Setting
from schemas.cells import CellConfigured
from tests.infra.simulation.elastic.lending import lending_cell
from tests.support.cells import configuration

CELL = lending_cell(2, 3)


def edited(*settings: str, nodes: tuple[str, ...] = (), cell: CellConfigured = CELL) -> CellConfigured:
    return Edits(tuple(map(Setting.parse, settings)), tuple(map(NodeCount.parse, nodes))).of(cell)


def test_without_changes_a_cell_stays_as_it_is():
    assert edited() is CELL


def test_settings_of_a_policy_are_set_by_name():
    policy = (
        edited("z.policy.scheme=fifo", "z.policy.seed=7", "z.policy.groups_elastic_jobs=false")
        .zones[0]
        .policy
    )
    assert (policy.scheme, policy.seed, policy.groups_elastic_jobs) == ("fifo", 7, False)


def test_all_else_of_a_zone_is_set_likewise():
    zones = edited("i.lending.notice_s=600", "z.horizon_slots=3").zones
    assert (zones[1].lending.notice_s, zones[0].horizon_slots) == (600.0, 3)
    assert zones[1].lending.borrowers == CELL.zones[1].lending.borrowers


def test_a_whole_part_is_set_as_json():
    assert edited('i.lending={"borrowers": [{"zone": "z", "weight": 2.0}]}').zones[1].lending.headroom == 0.02
    assert edited("i.lending=null").zones[1].lending is None


def test_the_later_of_two_settings_counts():
    assert edited("z.policy.seed=7", "z.policy.seed=8").zones[0].policy.seed == 8


def test_a_zone_keeps_its_first_nodes():
    assert [node.id for node in edited(nodes=("z=1",)).zones[0].nodes] == ["s0"]


def test_added_nodes_repeat_types_in_turn():
    cell = configuration()
    before = cell.zones[0].nodes
    after = edited(nodes=(f"z={2 * len(before)}",), cell=cell).zones[0].nodes
    assert after[: len(before)] == before
    assert [node.gpu_type for node in after[len(before) :]] == [node.gpu_type for node in before]
    assert after[len(before)].id == "z-001"


def test_new_nodes_take_no_names_that_there_are():
    grown = edited(nodes=("z=3",))
    again = edited(nodes=("z=5",), cell=grown)
    assert [node.id for node in again.zones[0].nodes] == ["s0", "s1", "z-001", "z-002", "z-003"]


BAD = {
    "no value": (("z.policy.scheme",), (), "expected ZONE.FIELD=VALUE"),
    "no field": (("z=1",), (), "expected ZONE.FIELD=VALUE"),
    "no such zone": (("y.policy.scheme=fifo",), (), "no such zone, the cell has z, i"),
    "no such field": (("z.policy.colour=red",), (), "colour"),
    "nothing below a value": (("z.policy.scheme.name=x",), (), "no policy.scheme with fields"),
    "nothing below nothing": (("z.lending.headroom=0.1",), (), "no lending with fields"),
    "no such value": (("z.policy.scheme=best",), (), "the changed cell is invalid"),
    "a value out of range": (("i.lending.headroom=NaN",), (), "the changed cell is invalid"),
    "nodes of no zone": ((), ("y=3",), "no zone y, it has z, i"),
    "no nodes": ((), ("z=0",), "expected ZONE=N"),
    "too many nodes": ((), ("z=10001",), "expected ZONE=N"),
    "nodes that are no number": ((), ("z=many",), "expected ZONE=N"),
}


@pytest.mark.parametrize(("settings", "nodes", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_changed_is_named(settings, nodes, message):
    with pytest.raises(CommandError, match=message):
        edited(*settings, nodes=nodes)
