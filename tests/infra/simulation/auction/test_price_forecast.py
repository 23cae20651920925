"""Opening prices from a recorded ledger."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from infra.cli import app_with
from infra.errors import CommandError
from infra.figures.auction.figures import AuctionFigures
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.simulation.auction.price_forecast import forecast_from_ledger, own_forecasts
from infra.views.figures import headline
from schemas.auction.evidence import ZonePriced
from schemas.auction.settings import AuctionPolicy, PdftspPolicy
from schemas.base import HOURS_PER_DAY
from schemas.clock import ClockTicked
from streams.cell.ledger_event import LedgerEvent
from streams.replay.files import ledger_line
from tests.support.cells import EPOCH_S, UNIT, Bench, bid, tick, zone

HOUR = int(EPOCH_S // 3_600)


def ledger_of(bench: Bench, path: Path, *, twice: bool = False) -> Path:
    """The bench's ledger as a file; with `twice`, every event comes again at the end, as after a crash."""
    entries = list(bench.ledger)
    if twice:
        entries += [LedgerEvent(len(entries) + n, entry.envelope) for n, entry in enumerate(bench.ledger)]
    path.write_bytes(b"".join(ledger_line(entry) for entry in entries))
    return path


def crowd(bids: int) -> Bench:
    """Send `bids` bids of 20 units for one slot of half a fast or a whole slow node: five fit."""
    bench = Bench.configured()
    for number in range(bids):
        bench.send(bid(f"j{number}", 20.0, work_samples=50, deadline_s=EPOCH_S + 10.0, memory_gib=1.0))
    return bench


def test_excess_demand_opens_at_a_price(tmp_path: Path) -> None:
    zones = forecast_from_ledger(ledger_of(crowd(20), tmp_path / "l.jsonl"), None)
    prices = {forecast.gpu_type: forecast.compute_micros[HOUR] for forecast in zones["z"]}
    # Half a fast node-slot is worth 20 less its energy: 39 a node-slot, of which four fifths are asked.
    assert prices["fast"] == pytest.approx(0.8 * 39 * UNIT, rel=0.3)
    assert prices["slow"] == pytest.approx(prices["fast"] / 2, rel=0.3)


def test_what_there_is_enough_of_opens_at_nothing(tmp_path: Path) -> None:
    (forecasts,) = forecast_from_ledger(ledger_of(crowd(3), tmp_path / "l.jsonl"), None).values()
    assert {price for forecast in forecasts for price in forecast.compute_micros} == {0.0}


def test_an_event_that_came_twice_counts_once(tmp_path: Path) -> None:
    once = forecast_from_ledger(ledger_of(crowd(20), tmp_path / "once.jsonl"), None)
    assert forecast_from_ledger(ledger_of(crowd(20), tmp_path / "l.jsonl", twice=True), None) == once


def test_a_cell_that_the_ledger_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no cell other"):
        forecast_from_ledger(ledger_of(crowd(3), tmp_path / "l.jsonl"), "other")


def test_printed_forecast_prices_the_next_day(tmp_path: Path) -> None:
    ledger = ledger_of(crowd(20), tmp_path / "l.jsonl")
    printed = CliRunner().invoke(app_with("forecast"), ["forecast", str(ledger)])
    assert printed.exit_code == 0, printed.output
    opening = yaml.safe_load(printed.stdout)["z"]["opening_prices"]
    policy = {"kind": "pdftsp", "money_unit_micros": UNIT, "max_value_per_compute_micros": UNIT} | {
        "max_value_per_memory_micros": UNIT,
        "opening_prices": opening,
    }
    bench = Bench.configured(zones=(zone(policy=PdftspPolicy.model_validate(policy, strict=False)),))
    bench.send(tick(0))
    (row,) = [row for row in opening if row["gpu_type"] == "fast"]
    assert len(row["compute_micros"]) == HOURS_PER_DAY
    market = bench.cell.zones["z"].auctioneer.market
    assert market.compute_price[0, 0] == row["compute_micros"][HOUR] > 0


def test_ledger_without_bids_gives_no_prices(tmp_path: Path) -> None:
    ledger = ledger_of(Bench.configured(), tmp_path / "l.jsonl")
    found = CliRunner().invoke(app_with("forecast"), ["forecast", str(ledger)])
    assert found.exit_code != 0
    assert "no basis for prices" in str(found.exception)


def test_self_pricing_zone_shows_basis_without_opening_prices(tmp_path: Path) -> None:
    bench = Bench.configured(zones=(zone(policy=AuctionPolicy()),))
    for number in range(20):
        bench.send(bid(f"j{number}", 20.0))
    bench.send(tick(1))
    ledger = ledger_of(bench, tmp_path / "l.jsonl")
    ((basis, expected_by_hour),) = own_forecasts(ledger, None).values()
    assert expected_by_hour is None
    assert basis.base_micros_per_thousand_samples == pytest.approx(
        1_000 * bench.zone.auctioneer.prices.basis.base_micros_per_unit
    )
    output = CliRunner().invoke(app_with("forecast"), ["forecast", str(ledger)]).stdout
    assert "z finds its prices itself, from demand of" in output
    assert yaml.safe_load(output) == {"z": {"basis": basis.model_dump(mode="json")}}


def test_expected_hours_appear_after_days_with_night(
    tmp_path: Path,
) -> None:
    bench = Bench.configured(zones=(zone(policy=AuctionPolicy()),), slot_s=3_600.0)
    for slot in range(4 * HOURS_PER_DAY):
        now_s = EPOCH_S + 3_600.0 * slot
        bench.send(ClockTicked(cell="c", time_s=now_s))
        if 8 <= (HOUR + slot) % HOURS_PER_DAY < 18:
            work = 18_000
            bench.send(bid(f"j{slot}", 900.0, deadline_s=now_s + 7_200.0, work_samples=work, memory_gib=1.0))
    ledger = ledger_of(bench, tmp_path / "l.jsonl")
    output = CliRunner().invoke(app_with("forecast"), ["forecast", str(ledger)]).stdout
    expected = yaml.safe_load(output)["z"]["expected_by_hour"]
    assert [part > 1 for part in expected] == [8 <= hour < 18 for hour in range(HOURS_PER_DAY)]
    *_, latest = (o for decision in bench.decisions if isinstance(o := decision.outcome, ZonePriced))
    assert list(latest.expected_by_hour or ()) == expected
    bars = "▁" * 8 + "█" * 10 + "▁" * 6
    told = f"expected by hour (0 to 24 UTC): {bars}; "
    assert told in output
    figures = summarise(Board.of("c", bench.ledger, bench.decisions)).part(AuctionFigures)
    assert told in headline(figures)
