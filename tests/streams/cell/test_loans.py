"""Servers that inference lends to other zones: offers, reclaims, and what operators and losses do to them."""

import pytest

from schemas.auction.evidence import JobReplanned
from schemas.cells import Borrower, Lending, Node
from schemas.changes import (
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    ZoneConfigured,
)
from schemas.clock import tick_interval_s
from schemas.decisions import EventIgnored, JobAdmitted, JobRejected, NodeMoved
from schemas.inference import CapacityOffered, InferenceLoadReported
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded, ReclaimPlanned
from streams.cell.state_machine import Cell
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    CheckedBench,
    ask,
    bid,
    finished,
    nodes_by_slot,
    offline,
    online,
    progressed,
    started,
    tick,
    zone,
)
from tests.support.loans import NOTICE_S, SERVERS, lender, lending_cell, offered, reclaimed, reported


def lending(**changes) -> CheckedBench:
    """At the beginning of slot 0, with no load to speak of."""
    bench = CheckedBench()
    bench.send(lending_cell(**changes), tick(0), reported(0.0))
    return bench


def only(outcomes, kind):
    (found,) = (outcome for outcome in outcomes if isinstance(outcome, kind))
    return found


def of_kind(outcomes, kind):
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def refused(outcomes) -> dict[str, tuple[str, ...]]:
    """Servers of an offer that are not lent, by the reason."""
    return {one.reason: one.servers for one in only(outcomes, OfferAnswered).refused}


def ignored(outcomes) -> str:
    return only(outcomes, EventIgnored).reason


def borrowers(outcomes) -> dict[str, str]:
    return {one.server: one.borrower for one in of_kind(outcomes, LoanChanged)}


def restarted(bench: CheckedBench) -> None:
    """The cell goes on from its snapshot."""
    cell = Cell.restore(bench.cell.snapshot())
    assert cell.packed() == bench.cell.packed()
    bench.cell = cell


class TestOffers:
    def test_a_server_is_lent_at_once(self):
        bench = lending()
        answer, changed, moved, *_ = bench.send(offered("s1"))
        assert isinstance(answer, OfferAnswered)
        assert (answer.lent, answer.refused) == (("s1",), ())
        assert changed == LoanChanged(
            server="s1", owner="inf", borrower="z", status="on_loan", since_s=EPOCH_S
        )
        assert (moved.node, moved.from_zone, moved.to_zone, moved.reason) == ("s1", "inf", "z", "lent")
        assert bench.cell.nodes.status_of("s1") == "down", "its executor is awaited"
        bench.send(online("s1"))
        assert bench.cell.nodes.status_of("s1") == "up"

    def test_borrowers_get_servers_in_proportion_to_their_weights(self):
        bench = lending()
        lent = borrowers(bench.send(offered(*SERVERS[:6])))
        assert lent == {"s1": "z", "s2": "y", "s3": "y", "s4": "z", "s5": "y", "s6": "y"}
        assert borrowers(bench.send(offered("s7"))) == {"s7": "z"}, "ties go to the first of them"

    def test_zone_borrows_only_known_gpu_types(self):
        bench = lending()
        assert borrowers(bench.send(offered("s8", "s9"))) == {"s8": "z", "s9": "z"}

    def test_server_of_unknown_type_stays(self):
        bench = lending(
            lending=Lending(borrowers=(Borrower(zone="y"),)),
        )
        assert refused(bench.send(offered("s1", "s8"))) == {"no_fitting_borrower": ("s8",)}

    def test_the_load_and_the_headroom_stay(self):
        bench = lending()
        bench.send(reported(0.4))
        # 0.4 of nine servers are four in whole ones, and 0.1 of them is one.
        outcomes = bench.send(offered(*SERVERS))
        assert only(outcomes, OfferAnswered).lent == SERVERS[:4]
        assert refused(outcomes) == {"inside_headroom": SERVERS[4:]}
        bench.send(reported(0.3, slot=1))
        assert refused(bench.send(offered("s5", "s6"))) == {"inside_headroom": ("s6",)}

    def test_one_server_stays_without_load_and_headroom(self):
        bench = lending(lending=Lending(headroom=0.0, borrowers=(Borrower(zone="z"),)))
        assert refused(bench.send(offered(*SERVERS))) == {"inside_headroom": ("s9",)}

    def test_unlendable_server_is_refused_by_name(self):
        bench = lending()
        bench.send(
            reported(0.0, serving=("s2", "a1")),
            offered("s1"),
            NodeCordoned(cell="c", node="s3"),
            NodeRetired(cell="c", node="s4"),
            NodeLent(cell="c", node="s5", zone="z"),
        )
        assert refused(bench.send(offered("s1", "s2", "s3", "s4", "s5", "a1", "nobody", "s6"))) == {
            "already_lent": ("s1", "s5"),
            "serving": ("s2",),
            "cordoned": ("s3",),
            "unknown_server": ("s4", "nobody"),
            "not_owned": ("a1",),
        }
        assert bench.cell.nodes.zone_of("s6") != "inf"

    def test_nothing_is_lent_before_the_first_load_report(self):
        bench = CheckedBench()
        bench.send(lending_cell(), tick(0))
        assert refused(bench.send(offered("s1"))) == {"no_load_report": ("s1",)}

    def test_an_offer_before_the_first_tick_is_ignored(self):
        bench = CheckedBench()
        bench.send(lending_cell())
        assert ignored(bench.send(offered("s1"))) == "no_time_yet"

    @pytest.mark.parametrize(("zone", "reason"), [("z", "zone_does_not_lend"), ("no", "unknown_zone")])
    def test_offer_of_zone_without_lending_is_ignored(self, zone: str, reason: str):
        bench = lending()
        offer = CapacityOffered(cell="c", zone=zone, offer_id="o", servers=("a1",))
        assert ignored(bench.send(offer)) == reason

    def test_an_earlier_load_report_is_ignored(self):
        bench = lending()
        bench.send(tick(1), reported(1.0, slot=1))
        assert ignored(bench.send(reported(0.0, slot=0.5))) == "stale_load"
        assert refused(bench.send(offered("s1"))) == {"inside_headroom": ("s1",)}

    def test_load_from_future_hides_no_later_one(self):
        bench = lending()
        bench.send(reported(0.0, slot=1_000_000), tick(2))
        assert bench.send(reported(1.0, slot=2)) == []
        assert refused(bench.send(offered("s1"))) == {"inside_headroom": ("s1",)}

    def test_old_load_lends_nothing(self):
        bench = lending(lending=Lending(load_valid_s=3 * SLOT_S, borrowers=(Borrower(zone="z"),)))
        bench.send(tick(1), reported(0.0, slot=1), tick(4))
        assert only(bench.send(offered("s1")), OfferAnswered).lent == ("s1",)
        bench.send(tick(5))
        assert refused(bench.send(offered("s2"))) == {"no_load_report": ("s2",)}
        bench.send(reported(0.0, slot=5))
        assert only(bench.send(offered("s2")), OfferAnswered).lent == ("s2",)

    def test_load_is_valid_one_tick_longer(self):
        bench = lending(lending=Lending(load_valid_s=3 * SLOT_S, borrowers=(Borrower(zone="z"),)))
        tick_slots = tick_interval_s(bench.cell.configuration) / SLOT_S
        bench.send(tick(3 + tick_slots))
        assert only(bench.send(offered("s1")), OfferAnswered).lent == ("s1",)
        bench.send(tick(3.25 + tick_slots))
        assert refused(bench.send(offered("s2"))) == {"no_load_report": ("s2",)}

    def test_load_before_first_tick_counts_from_epoch(self):
        bench = CheckedBench()
        bench.send(lending_cell(), reported(0.0, slot=1_000_000), tick(0))
        assert only(bench.send(offered("s1")), OfferAnswered).lent == ("s1",)
        bench.send(reported(1.0, slot=1))
        assert refused(bench.send(offered("s2"))) == {"inside_headroom": ("s2",)}

    def test_occupied_server_is_refused_under_any_policy(self):
        bench = CheckedBench()
        terms = Lending(headroom=0.0, borrowers=(Borrower(zone="y"),))
        other = zone(id="y", nodes=(Node(id="y1", gpu_type="fast", tariff="t"),))
        bench.send(lending_cell().model_copy(update={"zones": (zone(lending=terms), other)}), tick(0))
        bench.send(InferenceLoadReported(cell="c", zone="z", time_s=EPOCH_S, load=0.0))
        busy = set(nodes_by_slot(only(bench.send(bid()), JobAdmitted)).values())
        offer = CapacityOffered(cell="c", zone="z", offer_id="o", servers=("a1", "a2", "b1"))
        outcomes = bench.send(offer)
        assert set(refused(outcomes)["occupied"]) == busy
        assert set(only(outcomes, OfferAnswered).lent) == {"a1", "a2", "b1"} - busy

    def test_servers_without_room_at_borrower_stay(self):
        bench = CheckedBench()
        cell = lending_cell()
        full = zone(
            horizon_slots=10_000,
            nodes=tuple(Node(id=f"n{number}", gpu_type="fast", tariff="t") for number in range(52)),
            gpu_types=(zone().gpu_types[0].model_copy(update={"power_kw": 0.0}),),
        )
        zones = (full, lender(lending=Lending(borrowers=(Borrower(zone="z"),))))
        bench.send(
            cell.model_copy(update={"zones": zones, "duplicate_window_events": 100}), tick(0), reported(0.0)
        )
        outcomes = bench.send(offered("s1", "s2"))
        assert refused(outcomes) == {"breaks_a_promise": ("s1", "s2")}
        assert not of_kind(outcomes, NodeMoved)


class TestReclaims:
    def test_idle_server_returns_at_once(self):
        bench = lending()
        bench.send(offered("s1"), online("s1"))
        outcomes = bench.send(reclaimed(1, due_slot=4))
        planned = only(outcomes, ReclaimPlanned)
        assert (planned.servers, planned.due_s) == (("s1",), EPOCH_S + NOTICE_S)
        assert [one.status for one in of_kind(outcomes, LoanChanged)] == ["draining", "returned"]
        ended = only(outcomes, ReclaimEnded)
        assert (ended.status, ended.reclaim_id, ended.missing, ended.late_s) == ("in_time", "r", (), 0.0)
        assert bench.cell.nodes.zone_of("s1") == "inf"
        assert bench.cell.nodes.status_of("s1") == "up", "inference knows whether it is"
        assert borrowers(bench.send(offered("s1"))) == {"s1": "z"}, "it may be lent again"

    def test_reclaim_beyond_loans_is_ignored(self):
        bench = lending()
        bench.send(offered("s1", "s2"))
        assert ignored(bench.send(reclaimed(3, due_slot=9))) == "more_than_on_loan"
        assert not of_kind(bench.send(reclaimed(2, due_slot=9)), EventIgnored)

    def test_a_deadline_before_the_notice_is_refused(self):
        bench = lending()
        bench.send(offered("s1"), tick(2))
        assert ignored(bench.send(reclaimed(1, due_slot=5.9))) == "due_too_soon"
        assert only(bench.send(reclaimed(1, due_slot=6)), ReclaimEnded).status == "in_time"

    def test_notice_is_that_of_loan_time(self):
        bench = lending()
        bench.send(offered("s1"))
        shorter = lender(lending=Lending(notice_s=SLOT_S, borrowers=(Borrower(zone="z"),)))
        bench.send(ZoneConfigured(cell="c", zone=shorter))
        assert ignored(bench.send(reclaimed(1, due_slot=1))) == "due_too_soon"
        assert only(bench.send(reclaimed(1, due_slot=4)), ReclaimPlanned).servers == ("s1",)

    def test_reclaim_needs_longest_notice_of_loans(self):
        bench = lending()
        bench.send(offered("s1"))
        shorter = Lending(headroom=0.1, notice_s=SLOT_S, borrowers=(Borrower(zone="z"),))
        bench.send(ZoneConfigured(cell="c", zone=lender(lending=shorter)), offered("s2", id="o2"))
        assert ignored(bench.send(reclaimed(1, due_slot=1))) == "due_too_soon"
        assert only(bench.send(reclaimed(1, due_slot=4)), ReclaimPlanned).servers == ("s2",)
        assert ignored(bench.send(reclaimed(1, due_slot=1, id="r2"))) == "due_too_soon"

    def test_a_reclaim_id_is_used_once(self):
        bench = lending()
        bench.send(offered("s1", "s2"), reclaimed(1, due_slot=4))
        assert ignored(bench.send(reclaimed(1, due_slot=4))) == "duplicate_reclaim"

    def test_a_reclaim_before_the_first_tick_is_ignored(self):
        bench = CheckedBench()
        bench.send(lending_cell())
        assert ignored(bench.send(reclaimed(1, due_slot=9))) == "no_time_yet"

    def test_borrowers_give_back_in_proportion_to_their_weights(self):
        bench = lending()
        lent = borrowers(bench.send(offered(*SERVERS[:6])))
        bench.send(*map(online, SERVERS[:6]))
        chosen = only(bench.send(reclaimed(3, due_slot=4)), ReclaimPlanned).servers
        assert sorted(lent[server] for server in chosen) == ["y", "y", "z"]

    def test_loans_that_are_being_set_up_end_first(self):
        bench = lending(lending=Lending(notice_s=NOTICE_S, borrowers=(Borrower(zone="z"),)))
        bench.send(offered("s1", "s2", "s3", "s4"), online("s1"), online("s3"))
        assert only(bench.send(reclaimed(3, due_slot=4)), ReclaimPlanned).servers == ("s4", "s2", "s1")

    def test_a_borrower_gives_back_what_it_needs_least(self):
        bench, busy = busy_loan()
        bench.send(offered("s2"), online("s2"))
        assert not bench.cell.zones["z"].free_to_leave([busy])
        assert bench.cell.zones["z"].free_to_leave(["s2"])
        assert only(bench.send(reclaimed(1, due_slot=6)), ReclaimPlanned).servers == ("s2",)

    def test_two_reclaims_at_once_take_different_servers(self):
        bench = lending()
        bench.send(offered("s1", "s2", "s3"), *map(online, ("s1", "s2", "s3")))
        first = only(bench.send(reclaimed(1, due_slot=4, id="r1")), ReclaimPlanned).servers
        second = only(bench.send(reclaimed(2, due_slot=5, id="r2")), ReclaimPlanned).servers
        assert sorted((*first, *second)) == ["s1", "s2", "s3"]


def busy_loan() -> tuple[CheckedBench, str]:
    """Server s1 is on loan to a zone whose own nodes are down, and is to train job j in slots 1, 2 and 3."""
    bench = lending(lending=Lending(headroom=0.1, notice_s=NOTICE_S, borrowers=(Borrower(zone="z"),)))
    bench.send(offered("s1"), online("s1"), *map(offline, ("a1", "a2", "b1")))
    admitted = only(bench.send(bid(work_samples=150, units=50.0)), JobAdmitted)
    assert nodes_by_slot(admitted) == {1: "s1", 2: "s1", 3: "s1"}
    return bench, "s1"


def reclaim_of_busy(bench: CheckedBench) -> None:
    """In slot 1, with the job running, s1 is reclaimed by the end of slot 4."""
    bench.send(tick(1), started("s1", 1, 0))
    outcomes = bench.send(reclaimed(1, due_slot=5))
    assert [one.status for one in of_kind(outcomes, LoanChanged)] == ["draining"]
    assert not of_kind(outcomes, NodeMoved)


def train_slots(bench: CheckedBench, *slots: int) -> list:
    """The job trains its quotas of these slots."""
    outcomes = []
    for slot in slots:
        outcomes += bench.send(progressed("s1", slot, 50 * slot), tick(slot + 1))
    return outcomes


class TestDeadlines:
    def test_busy_server_returns_after_its_work(self):
        bench, _ = busy_loan()
        reclaim_of_busy(bench)
        train_slots(bench, 1, 2)
        outcomes = bench.send(finished("s1", 3, done=150))
        assert only(outcomes, ReclaimEnded).status == "in_time"
        assert only(outcomes, LoanChanged).status == "returned"
        assert only(outcomes, NodeMoved).to_zone == "inf"

    def test_what_fits_elsewhere_moves(self):
        bench, _ = busy_loan()
        bench.send(online("a1"))
        bench.send(tick(1), started("s1", 1, 0))
        outcomes = bench.send(reclaimed(1, due_slot=5))
        assert set(nodes_by_slot(only(outcomes, JobReplanned)).values()) == {"a1"}
        outcomes = bench.send(progressed("s1", 1, 50))
        assert only(outcomes, ReclaimEnded).status == "in_time"

    def test_endless_run_makes_reclaim_overdue_then_late(self):
        bench, _ = busy_loan()
        bench.send(tick(0.5), reclaimed(1, due_slot=4.5), tick(1), started("s1", 1, 0))
        train_slots(bench, 1, 2)
        assert not of_kind(bench.send(tick(4), tick(4.5)), ReclaimEnded), "due, not overdue"
        overdue = only(bench.send(tick(4.75)), ReclaimEnded)
        assert (overdue.status, overdue.missing, overdue.late_s) == ("overdue", ("s1",), 0.25 * SLOT_S)
        assert bench.cell.nodes.zone_of("s1") == "z", "nothing is taken from a run"
        assert not bench.send(tick(4.875)), "it is said once"
        # The report of slot 3 is waited for until slot 4 is over.
        late = only(bench.send(tick(5)), ReclaimEnded)
        assert (late.status, late.missing, late.late_s) == ("late", (), 0.5 * SLOT_S)

    def test_overdue_reclaims_are_by_due_time(self):
        bench = lending(lending=Lending(headroom=0.1, notice_s=NOTICE_S, borrowers=(Borrower(zone="z"),)))
        bench.send(offered("s1", "s2", "s3"), *map(online, ("s1", "s2", "s3")))
        bench.send(*map(offline, ("a1", "a2", "b1")))
        whole = {"work_samples": 300, "units": 5_000, "speed_samples_per_s": {"fast": 10.0}}
        server_of = {}
        for name in ("i", "j", "k"):
            (server_of[name],) = set(
                nodes_by_slot(only(bench.send(bid(name, **whole)), JobAdmitted)).values()
            )
        bench.send(
            tick(0.5), *(reclaimed(1, slot, id) for id, slot in (("r1", 4.75), ("r3", 4.5), ("r2", 4.5)))
        )
        bench.send(tick(1))
        for slot in (1, 2):
            for name, server in server_of.items():
                bench.send(
                    started(server, slot, 100 * (slot - 1), name),
                    progressed(server, slot, 100 * slot, job_id=name),
                )
            bench.send(tick(slot + 1))
        bench.send(tick(4))
        ended = of_kind(bench.send(tick(4.875)), ReclaimEnded)
        assert [(one.reclaim_id, one.status) for one in ended] == [
            ("r2", "overdue"),
            ("r3", "overdue"),
            ("r1", "overdue"),
        ]

    def test_cell_resumes_from_snapshot_during_reclaim(self):
        bench, _ = busy_loan()
        restarted(bench)
        reclaim_of_busy(bench)
        restarted(bench)
        train_slots(bench, 1, 2)
        restarted(bench)
        assert ignored(bench.send(reclaimed(1, due_slot=9))) == "duplicate_reclaim"
        assert only(bench.send(finished("s1", 3, done=150)), ReclaimEnded).status == "in_time"


class TestOtherChanges:
    def test_a_draining_server_that_is_lost_is_back(self):
        bench, _ = busy_loan()
        reclaim_of_busy(bench)
        outcomes = bench.send(offline("s1"))
        assert only(outcomes, ReclaimEnded).status == "in_time"
        assert bench.cell.nodes.zone_of("s1") == "inf"
        assert bench.cell.nodes.status_of("s1") == "up"

    def test_reports_without_commands_change_nothing(self):
        bench = lending()
        assert bench.send(offline("s1"), online("s1", base_model="other")) == []
        assert not bench.cell.nodes.awaits(online("s1"))
        assert borrowers(bench.send(offered("s1"))) == {"s1": "z"}

    def test_an_operator_takes_a_server_back(self):
        bench, _ = busy_loan()
        bench.send(tick(1), started("s1", 1, 0))
        changed = only(bench.send(NodeReturned(cell="c", node="s1")), LoanChanged)
        assert (changed.status, changed.due_s) == ("draining", EPOCH_S + SLOT_S + NOTICE_S)
        assert ignored(bench.send(reclaimed(1, due_slot=9))) == "more_than_on_loan"
        train_slots(bench, 1, 2)
        outcomes = bench.send(finished("s1", 3, done=150))
        assert only(outcomes, LoanChanged).status == "returned"
        assert not of_kind(outcomes, ReclaimEnded)

    def test_retired_server_ends_its_reclaim(self):
        bench, _ = busy_loan()
        reclaim_of_busy(bench)
        bench.send(NodeRetired(cell="c", node="s1"))
        train_slots(bench, 1, 2)
        outcomes = bench.send(finished("s1", 3, done=150))
        assert only(outcomes, NodeMoved).to_zone is None
        assert only(outcomes, LoanChanged).status == "returned"
        assert only(outcomes, ReclaimEnded).status == "in_time"

    @pytest.mark.parametrize("is_reclaimed", [False, True])
    def test_server_kept_from_retirement_is_unchanged(self, is_reclaimed: bool):
        bench, _ = busy_loan()
        if is_reclaimed:
            reclaim_of_busy(bench)
        outcomes = bench.send(
            NodeRetired(cell="c", node="s1"),
            NodeRegistered(cell="c", node="s1", zone="inf", gpu_type="fast", tariff="t"),
        )
        statuses = [one.status for one in of_kind(outcomes, LoanChanged)]
        assert statuses == ([] if is_reclaimed else ["draining", "on_loan"])
        assert (bench.cell.nodes.status_of("s1") == "leaving") == is_reclaimed

    def test_server_lent_by_operator_is_not_on_loan(self):
        bench = lending()
        assert not of_kind(bench.send(NodeLent(cell="c", node="s1", zone="z")), LoanChanged)
        assert ignored(bench.send(reclaimed(1, due_slot=9))) == "more_than_on_loan"
        assert not of_kind(bench.send(NodeReturned(cell="c", node="s1")), LoanChanged)

    def test_a_borrower_keeps_a_node_of_its_own(self):
        bench = lending()
        bench.send(offered("s1", "s2"))
        assert ignored(bench.send(NodeRetired(cell="c", node="y1"))) == "invalid_configuration"

    def test_zone_keeps_lending_during_loans(self):
        bench = lending()
        bench.send(offered("s1"))
        assert ignored(bench.send(ZoneConfigured(cell="c", zone=lender(lending=None)))) == "breaks_a_promise"
        bench.send(reclaimed(1, due_slot=4))
        assert not of_kind(bench.send(ZoneConfigured(cell="c", zone=lender(lending=None))), EventIgnored)

    def test_former_borrower_returns_servers_first(self):
        bench = lending()
        lent = borrowers(bench.send(offered("s1", "s2", "s3", "s4")))
        terms = Lending(headroom=0.1, notice_s=NOTICE_S, borrowers=(Borrower(zone="y"),))
        bench.send(ZoneConfigured(cell="c", zone=lender(lending=terms)))
        chosen = only(bench.send(reclaimed(2, due_slot=4)), ReclaimPlanned).servers
        assert {lent[server] for server in chosen} == {"z"}


class TestTheAuctionOnBorrowedServers:
    def test_nothing_is_planned_beyond_the_notice(self):
        bench, _ = busy_loan()
        # A fifth slot would end after the notice.
        rejected = only(bench.send(bid("k", work_samples=200)), JobRejected)
        assert rejected.reason == "no_room_before_deadline"
        assert not of_kind(bench.send(ask(work_samples=200)), JobAdmitted)

    def test_the_limit_moves_with_the_time(self):
        bench = lending(lending=Lending(headroom=0.1, notice_s=NOTICE_S, borrowers=(Borrower(zone="z"),)))
        bench.send(offered("s1"), online("s1"), *map(offline, ("a1", "a2", "b1")))
        late = {"deadline_s": EPOCH_S + 10 * SLOT_S, "work_samples": 200}
        assert only(bench.send(bid("k", **late)), JobRejected)
        restarted(bench)
        bench.send(tick(0.9))
        assert only(bench.send(bid("l", **late)), JobRejected), "slot 4 ends a tenth of a slot too late"
        bench.send(tick(1))
        assert only(bench.send(bid("m", work_samples=150)), JobAdmitted)
