"""Configurations with a few things changed."""

import pytest

from infra.errors import CommandError
from infra.simulation.alternative import Alternative, NodeAddition, check_comparable, losses
from infra.simulation.auction.policies import OtherPolicies
from schemas.auction.settings import AuctionPolicy, EarliestFinishPolicy, OpeningPrices
from schemas.base import HOURS_PER_DAY
from schemas.cells import CellConfigured, Node
from tests.support.cells import UNIT, configuration, zone

CELL = configuration()


def nodes(cell: CellConfigured) -> list[tuple[str, str]]:
    return [(node.id, node.gpu_type) for zone in cell.zones for node in zone.nodes]


def test_by_default_nothing_is_changed():
    assert Alternative().of(CELL) == CELL


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        pytest.param(0.5, [("a1", "fast"), ("b1", "slow")], id="halves are rounded up"),
        pytest.param(0.3, [("a1", "fast")], id="a type may go"),
        pytest.param(
            2.0,
            [
                *nodes(CELL),
                ("added-1", "fast"),
                ("added-2", "fast"),
                ("added-3", "slow"),
            ],
            id="twice as many",
        ),
    ],
)
def test_scaling_keeps_the_first_nodes_of_each_type(factor, expected):
    assert nodes(Alternative(scale_nodes=factor).of(CELL)) == expected


def test_added_nodes_copy_tariff_under_free_names():
    taken = configuration(zones=(zone(nodes=(Node(id="added-1", gpu_type="fast", tariff="t"),)),))
    changed = Alternative(additions=(NodeAddition.parse("z:slow=1"), NodeAddition.parse("z:fast=1"))).of(
        taken
    )
    assert nodes(changed) == [("added-1", "fast"), ("added-2", "slow"), ("added-3", "fast")]
    assert {node.tariff for node in changed.zones[0].nodes} == {"t"}


def test_prices_are_set_in_every_zone():
    changed = OtherPolicies(prices={"money_unit_micros": 5, "max_value_per_compute_micros": 7}).of(CELL)
    policy = changed.zones[0].policy
    assert (policy.money_unit_micros, policy.max_value_per_compute_micros) == (5, 7)
    assert policy.max_value_per_memory_micros == 4 * UNIT


@pytest.mark.parametrize(
    ("name", "rules"),
    [("pdftsp", ("critical", "room_first", "exact")), ("published", ("published",) * 3)],
)
def test_prices_make_an_auction_where_there_was_none(name, rules):
    bounds = {
        "money_unit_micros": 5,
        "max_value_per_compute_micros": 7,
        "max_value_per_memory_micros": 9,
    }
    policy = OtherPolicies(name, prices=bounds).of(EARLIEST_FINISH).zones[0].policy
    assert {field: getattr(policy, field) for field in bounds} == bounds
    assert (policy.payment, policy.order, policy.search) == rules


def test_forecast_prices_stay_except_under_printed_auction():
    hourly = (3.0,) * HOURS_PER_DAY
    opening = (OpeningPrices(gpu_type="fast", compute_micros=hourly, memory_micros=hourly),)
    declared = CELL.zones[0].policy.model_copy(update={"max_density_units": 9.0})
    forecast = declared.model_copy(update={"steepness": "learned", "opening_prices": opening})
    cell = configuration(zones=(zone(policy=forecast),))
    printed = declared.model_copy(
        update={"payment": "published", "order": "published", "search": "published"}
    )
    assert OtherPolicies("published").of(cell).zones[0].policy == printed
    assert OtherPolicies("pdftsp").of(cell).zones[0].policy == forecast
    assert OtherPolicies("auction").of(cell).zones[0].policy == AuctionPolicy()


def test_scaling_undone_by_rounding_is_remarked():
    assert Alternative().without_effect(CELL) == []
    assert Alternative(scale_nodes=2.0).without_effect(CELL) == []
    assert Alternative(scale_nodes=0.5).without_effect(CELL) == [
        "--scale-nodes 0.5 is rounded to as many nodes as there are: 1 of type slow in zone z"
    ]
    assert Alternative(scale_nodes=1.2).without_effect(CELL) == [
        "--scale-nodes 1.2 is rounded to as many nodes as there are: 2 of type fast in zone z, "
        "1 of type slow in zone z"
    ]


EARLIEST_FINISH = configuration(zones=(zone(policy=EarliestFinishPolicy(kind="eft")),))
FAULTS = {
    "no node left": (Alternative(scale_nodes=0.1), CELL, "leaves zone z without any node"),
    "no such zone": (Alternative(additions=(NodeAddition("y", "fast", 1),)), CELL, "no zone y"),
    "no such type": (
        Alternative(additions=(NodeAddition("z", "H9", 1),)),
        CELL,
        "no gpu type H9, it has fast",
    ),
    "more than a cell holds": (
        Alternative(scale_nodes=100.0, additions=(NodeAddition("z", "fast", 9_900),)),
        CELL,
        "the changed cell is invalid: zones.0.nodes",
    ),
    "a price where there is none": (
        OtherPolicies(prices={"money_unit_micros": 5}),
        EARLIEST_FINISH,
        "zone z is under policy eft, which has no money_unit_micros",
    ),
    "the printed auction without bounds": (
        OtherPolicies("published"),
        EARLIEST_FINISH,
        "zone z of the cell declares no bounds on bids, .* give --money-unit-micros, "
        "--max-value-per-compute-micros, --max-value-per-memory-micros$",
    ),
    "pdftsp without one bound": (
        OtherPolicies("published", prices={"money_unit_micros": 1, "max_value_per_memory_micros": 1}),
        EARLIEST_FINISH,
        "give --max-value-per-compute-micros$",
    ),
    "a fixed price without the price": (OtherPolicies("fixed-price"), CELL, "needs --price-per"),
}


@pytest.mark.parametrize(("alternative", "cell", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_impossible_change_has_reason(alternative, cell, fault):
    with pytest.raises(CommandError, match=fault):
        alternative.of(cell)


@pytest.mark.parametrize("text", ["z:fast", "z=3", "z:fast=0", "z:fast=-1", "z:fast=10001", "z:fast=2=3", ""])
def test_nodes_to_add_are_read_strictly(text):
    with pytest.raises(CommandError, match="expected ZONE:GPU_TYPE=N"):
        NodeAddition.parse(text)


def test_slots_must_be_the_same():
    check_comparable(CELL, configuration(node_timeout_s=3.0))
    with pytest.raises(CommandError, match=r"slot_s is 5\.0 in the file of cells and 10\.0 in the ledger"):
        check_comparable(CELL, configuration(slot_s=5.0))


def test_missing_parts_of_changed_cell_are_remarked():
    other = configuration(zones=(zone(id="y", nodes=CELL.zones[0].nodes[:2]),), vendors=("slow",))
    assert losses(CELL, CELL) == []
    assert [line.split(": ")[1].split(";")[0] for line in losses(CELL, other)] == [
        "zones z",
        "nodes b1",
        "vendors fast",
    ]
