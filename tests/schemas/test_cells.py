"""The rules between the fields of a cell's configuration: each break is refused by name."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.cells import LEAST_LIVE_JOBS_BYTES, CellConfigured
from schemas.codec import describe
from tests.schemas.samples import CONFIGURED

Change = Callable[[dict[str, Any]], object]


def configured(change: Change) -> CellConfigured:
    """The sample configuration after a change to its JSON."""
    configuration = deepcopy(CONFIGURED)
    change(configuration)
    return CellConfigured.model_validate_json(json.dumps(configuration))


def zone(change: Change) -> Change:
    return lambda cell: change(cell["zones"][0])


def second_zone(cell: dict[str, Any]) -> None:
    [first] = cell["zones"]
    cell["zones"].append(deepcopy(first) | {"id": "zone-2"})


ROW = {
    "gpu_type": "h100",
    "rank": 8,
    "batch_size": 8,
    "sequence_length": 64,
    "samples_per_s": 9.0,
    "memory_gib": 4.0,
}
REFUSED: dict[str, tuple[Change, str]] = {
    "zone too small for its base model": (
        zone(lambda zone: zone.update(base_model_memory_gib=80.0)),
        r"zone zone-1: a node of type a100 has 80\.0 GiB, too small for base model llama-7b",
    ),
    "gpu type twice": (
        zone(lambda zone: zone["gpu_types"].append(zone["gpu_types"][0])),
        "zone zone-1: gpu type a100 is given twice",
    ),
    "node twice": (
        zone(lambda zone: zone["nodes"].append(zone["nodes"][0])),
        "zone zone-1: node node-1 is given twice",
    ),
    "node in two zones": (second_zone, "cell cell-1: node node-1 is given twice"),
    "zone twice": (
        lambda cell: cell["zones"].append(cell["zones"][0]),
        "cell cell-1: zone zone-1 is given twice",
    ),
    "tariff twice": (
        lambda cell: cell["tariffs"].append(cell["tariffs"][0]),
        "cell cell-1: tariff flat is given twice",
    ),
    "vendor twice": (
        lambda cell: cell["vendors"].append("label-co"),
        "cell cell-1: vendor label-co is given twice",
    ),
    "unknown gpu type of a node": (
        zone(lambda zone: zone["nodes"][0].update(gpu_type="h100")),
        "zone zone-1: node node-1 is of type h100, which the zone lacks",
    ),
    "unknown gpu type of a throughput row": (
        zone(lambda zone: zone.update(throughput=[ROW])),
        "zone zone-1: a throughput row names gpu type h100, which the zone lacks",
    ),
    "unknown borrower": (
        zone(lambda zone: zone.update(lending={"borrowers": [{"zone": "zone-9"}]})),
        "zone zone-1 lends to zone zone-9, which the cell lacks",
    ),
    "a borrower that is the lender": (
        zone(lambda zone: zone.update(lending={"borrowers": [{"zone": "zone-1"}]})),
        "zone zone-1 lends to itself: name other zones as borrowers",
    ),
    "borrower twice": (
        zone(lambda zone: zone.update(lending={"borrowers": [{"zone": "zone-9"}, {"zone": "zone-9"}]})),
        "zone zone-1: borrower zone-9 is given twice",
    ),
    "unknown tariff": (
        zone(lambda zone: zone["nodes"][0].update(tariff="night")),
        "zone zone-1: node node-1 pays tariff night, which the cell lacks",
    ),
    "a day of 23 hours": (
        lambda cell: cell["tariffs"][0]["micros_per_kwh"].pop(),
        r"tariffs\.0\.micros_per_kwh: Tuple should have at least 24 items",
    ),
    "no zone": (lambda cell: cell["zones"].clear(), "zones: Tuple should have at least 1 item"),
    "no node": (zone(lambda zone: zone["nodes"].clear()), "zone zone-1: a zone keeps at least one node"),
    "a policy that does not exist": (
        zone(lambda zone: zone["policy"].update(kind="lottery")),
        "policy: kind lottery is not known, the known ones are auction, eft, elastic, experts, "
        "fixed_price, inference, merging, ntm, pdftsp, titan",
    ),
}


@pytest.mark.parametrize(("change", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_inconsistent_configuration_is_refused_by_name(change: Change, reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        configured(change)
    assert re.search(reason, describe(refused.value))


def five_classes(zone: dict[str, Any]) -> None:
    """Five GPU types, with a node of each."""
    zone["gpu_types"] = [{**zone["gpu_types"][0], "name": f"type-{number}"} for number in range(5)]
    zone["nodes"] = [
        {**zone["nodes"][0], "id": gpu["name"], "gpu_type": gpu["name"]} for gpu in zone["gpu_types"]
    ]
    zone["policy"].pop("opening_prices", None)


def test_auction_refuses_zone_of_five_classes() -> None:
    with pytest.raises(ValidationError) as refused:
        configured(zone(five_classes))
    assert describe(refused.value) == (
        "zones.0: zone zone-1: 5 pairs of gpu type and tariff, but the exact search takes at most 4: "
        "split the zone"
    )
    assert configured(zone(lambda zone: (five_classes(zone), zone.update(policy={"kind": "eft"}))))


def test_the_sample_is_accepted_with_the_stated_defaults() -> None:
    cell = configured(lambda cell: None)
    assert (cell.slot_s, cell.node_timeout_s, cell.duplicate_window_events) == (600.0, 60.0, 50_000)
    assert (cell.zones[0].horizon_slots, cell.zones[0].policy.payment) == (144, "critical")


def test_node_needs_one_mebibyte_beyond_base() -> None:
    gib = 80.0 - 2.0**-10
    assert configured(zone(lambda zone: zone.update(base_model_memory_gib=gib)))


def test_second_zone_with_own_nodes_is_accepted() -> None:
    def add(cell: dict[str, Any]) -> None:
        second_zone(cell)
        cell["zones"][1]["nodes"][0]["id"] = "node-2"

    assert [zone.id for zone in configured(add).zones] == ["zone-1", "zone-2"]


def nodes(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"id": f"n{first + n}", "gpu_type": "a100", "tariff": "flat"} for n in range(count)]


def test_oversized_zone_names_size_and_limit() -> None:
    with pytest.raises(ValidationError) as refusal:
        configured(zone(lambda zone: zone.update(horizon_slots=10_000, nodes=nodes(10_000))))
    assert (
        "cell cell-1: horizon_slots x nodes is 100000000 over all zones (3052 MiB), at most 524288 (16 MiB) "
        "are held: zone zone-1 has 10000 slots x 10000 nodes = 100000000"
    ) in str(refusal.value)


def test_zones_are_held_together() -> None:
    def two(horizon_slots: int) -> Change:
        def change(cell: dict[str, Any]) -> None:
            second_zone(cell)
            for index, one in enumerate(cell["zones"]):
                one |= {"horizon_slots": horizon_slots, "nodes": nodes(1_024, first=1_024 * index)}

        return change

    assert configured(two(256))
    with pytest.raises(ValidationError, match="is 526336 over all zones"):
        configured(two(257))


def test_more_ids_than_a_snapshot_holds_are_refused() -> None:
    assert configured(lambda cell: cell.update(duplicate_window_events=131_072))
    with pytest.raises(
        ValidationError, match="131073, of events and of jobs, is 262146 ids, at most 262144 are held"
    ):
        configured(lambda cell: cell.update(duplicate_window_events=131_073))


def test_cell_without_room_names_the_cause() -> None:
    def large(vendors: int) -> Change:
        def change(cell: dict[str, Any]) -> None:
            second_zone(cell)
            for index, one in enumerate(cell["zones"]):
                one |= {"horizon_slots": 512, "nodes": nodes(512, first=512 * index)}
            cell["duplicate_window_events"] = 131_072
            cell["vendors"] = [f"v{number}" for number in range(vendors)]

        return change

    assert configured(large(500)).live_jobs_bytes >= LEAST_LIVE_JOBS_BYTES
    message = r"524288 node-slots, 262144 ids, 2 zones and 1000 vendors .* at least 4194304 are needed"
    with pytest.raises(ValidationError, match=message):
        configured(large(1_000))


def test_inexact_costs_of_node_are_refused() -> None:
    def priced(micros_per_kwh: int) -> Change:
        def change(cell: dict[str, Any]) -> None:
            cell["tariffs"][0]["micros_per_kwh"] = [0] * 23 + [micros_per_kwh]

        return change

    # 0.4 kW for 144 slots of 600 s are 9.6 kWh.
    assert configured(priced(8 * 10**14))
    reason = r"zone zone-1: a node of type a100 under tariff flat may cost 8.64e\+15 micros over 144 slots"
    with pytest.raises(ValidationError, match=reason):
        configured(priced(9 * 10**14))


def test_a_configuration_cannot_be_changed() -> None:
    cell = configured(lambda cell: None)
    with pytest.raises(ValidationError, match="frozen"):
        cell.slot_s = 1.0  # type: ignore[misc]


def test_node_below_one_sample_is_refused() -> None:
    with pytest.raises(ValidationError, match="zone zone-1: a node of type a100 trains less than one sample"):
        configured(lambda cell: cell.update(slot_s=0.02))
