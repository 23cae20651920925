"""Servers that are neither lent nor just returned must report their presence."""

from infra.lender.lending_zones import Presence
from schemas.loans import LoanChanged, LoanStatus
from schemas.view_records import ZoneState
from tests.infra.lender.loads import CELL, START_S, ZONE, lending_zone

STARTS_IN_S = 600.0


def presence(servers: int = 3, elsewhere: tuple[str, ...] = ()) -> Presence:
    state = ZoneState(cell=CELL, zone=lending_zone(servers), elsewhere=elsewhere)
    return Presence(state, STARTS_IN_S)


def changed(server: str, status: LoanStatus) -> LoanChanged:
    return LoanChanged(server=server, owner=ZONE, borrower="training", status=status, since_s=START_S)


def test_expected_servers_exclude_those_lent_by_operator():
    assert presence().expected(START_S) == {"s000", "s001", "s002"}
    assert presence(elsewhere=("s001",)).expected(START_S) == {"s000", "s002"}


def test_server_is_expected_after_time_to_start():
    zone = presence()
    for status in ("on_loan", "draining"):
        zone.update_loan(changed("s001", status))
        assert zone.expected(START_S + 86_400.0) == {"s000", "s002"}
    zone.update_loan(changed("s001", "returned"))
    assert zone.expected(START_S + STARTS_IN_S - 1.0) == {"s000", "s002"}
    assert zone.expected(START_S + STARTS_IN_S) == {"s000", "s001", "s002"}


def test_a_zone_that_changes_is_followed():
    zone = presence()
    zone.update_loan(changed("s002", "on_loan"))
    zone.update_zone(ZoneState(cell=CELL, zone=lending_zone(4), elsewhere=("s000",)))
    assert zone.owned == ["s000", "s001", "s002", "s003"]
    assert zone.expected(START_S) == {"s001", "s003"}
