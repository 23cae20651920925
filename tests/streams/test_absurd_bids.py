"""Bids that stand in others' way: of enormous amounts, or for room that is hardly used. What they do to
others' prices, for how long, and what it costs whoever bids.

`RISE_PER_SHARE` bounds the rise while they are held, and with the next slot after a withdrawal it is undone.
Who reserves room pays what it would cost to use it, used or not, and what was not for energy is kept."""

import random
from functools import cache

import pytest

from infra.commands.options import CELLS_DIRECTORY
from schemas.auction.bids import BidTerms, DeadlineTerms
from schemas.auction.settings import AuctionPolicy
from schemas.base import HOURS_PER_DAY
from schemas.clock import ClockTicked
from schemas.decisions import JobAdmitted, JobQuoted, JobWithdrawn
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from solvers.auction.posted.constants import RISE_PER_SHARE
from solvers.auction.posted.levels import Levels, least_level
from solvers.auction.posted.prices import PostedPrices
from streams.cell.state_machine import Cell
from streams.worker.cells_file import load_cells
from tests.support.cells import Bench
from tests.support.quota_runs import QuotaRuns

SLOT_S = 600.0
ZONE = "llama-7b"
ABSURD_MICROS = 10**15
ABSURD_BIDS = 240
NODE_SLOT_SAMPLES = 4_800
"""Samples per node-slot of such a task, on the faster nodes."""
DAY_SLOTS = 60
OVERLOADED_SLOTS = 40
ATTACKED_SLOTS = 15
HONEST_SLOTS = 40
HONEST_SAMPLES = 2 * NODE_SLOT_SAMPLES
HORIZON_SLOTS = 144
UNITS_PER_SLOT = 6 * 24 * SLOT_S + 6 * 9 * SLOT_S
CHEAPEST_MICROS_PER_UNIT = 120_000 * 0.4 / (24 * 3_600)
"""Least cost of operation per unit: that of the faster nodes at night."""


class Fleet:
    """The fleet of the simulator with nothing declared, without bids or with those of half a day."""

    def __init__(self, is_warm: bool, is_free: bool) -> None:
        (cell,) = [
            cell for cell in load_cells(CELLS_DIRECTORY / "fleet.yaml", epoch_s=0.0) if cell.cell == "fleet"
        ]
        (zone,) = [zone for zone in cell.zones if zone.id == ZONE]
        tariffs = cell.tariffs
        if is_free:
            free = {"micros_per_kwh": (0,) * HOURS_PER_DAY}
            tariffs = tuple(tariff.model_copy(update=free) for tariff in tariffs)
        assert zone.policy == AuctionPolicy()
        self.bench = Bench(Cell("fleet"))
        self.bench.send(cell.model_copy(update={"zones": (zone,), "tariffs": tariffs}))
        self.runs = QuotaRuns("fleet", SLOT_S)
        self.slot = 0
        self.tick(0)
        rng = random.Random("absurd bids")
        for _ in range(DAY_SLOTS if is_warm else 0):
            self.bid_honestly(rng, bids=3)
            self.tick()

    def fork(self) -> "Fleet":
        twin = object.__new__(Fleet)
        twin.bench = Bench(Cell.restore(self.bench.cell.snapshot()), list(self.bench.ledger))
        twin.runs, twin.slot = self.runs, self.slot
        return twin

    def tick(self, slots: int = 1) -> None:
        self.bench.send(*self.runs.reports())
        self.slot += slots
        self.runs = self.runs.next(self.bench.send(ClockTicked(cell="fleet", time_s=self.slot * SLOT_S)))

    def bid(self, job_id: str, micros: int, samples: int, slots: int) -> int | None:
        """Return the payment in micros; None if the bid loses."""
        return self.bid_for(job_id, micros, work(samples), slots)

    def bid_for(self, job_id: str, micros: int, workload: LoraWorkload, slots: int) -> int | None:
        terms = BidTerms(bid_micros=micros, deadline_s=(self.slot + slots) * SLOT_S)
        (outcome,) = self.bench.send(
            JobSubmitted(cell="fleet", job_id=job_id, user="u", zone=ZONE, workload=workload, terms=terms)
        )
        return outcome.payment_micros if isinstance(outcome, JobAdmitted) else None

    def bid_honestly(self, rng: random.Random, bids: int) -> int:
        """Return the value of the winning bids, in micros."""
        value_micros = 0
        for number in range(bids):
            micros = int(rng.lognormvariate(0, 1) * 60_000)
            samples, slots = rng.randint(2_000, 20_000), rng.randint(6, 60)
            if self.bid(f"honest{self.slot}-{number}", micros, samples, slots) is not None:
                value_micros += micros
        return value_micros

    def withdraw(self, job_id: str) -> int:
        """Withdraw a job, and return the refund in micros."""
        withdrawal = JobWithdrawalRequested(cell="fleet", job_id=job_id, user="u")
        (outcome,) = self.bench.send(withdrawal)
        assert isinstance(outcome, JobWithdrawn)
        return outcome.returned_micros

    def try_withdraw(self, job_id: str) -> bool:
        """Whether it could be withdrawn: it has not started yet."""
        (outcome,) = self.bench.send(JobWithdrawalRequested(cell="fleet", job_id=job_id, user="u"))
        return isinstance(outcome, JobWithdrawn)

    def quote(self) -> int:
        """The least bid that wins for two node-slots of work in the next hours; there is always one."""
        lowest = self.quote_for(work(HONEST_SAMPLES), HONEST_SLOTS)
        assert lowest is not None
        return lowest

    def quote_for(self, workload: LoraWorkload, slots: int) -> int | None:
        (outcome,) = self.bench.send(
            JobQuoteRequested(
                cell="fleet",
                quote_id="q",
                user="honest",
                zone=ZONE,
                workload=workload,
                terms=DeadlineTerms(deadline_s=(self.slot + slots) * SLOT_S),
            )
        )
        assert isinstance(outcome, JobQuoted)
        return outcome.evidence.lowest_winning_bid_micros

    def attack(self, samples: int) -> tuple[list[str], int]:
        """Return the absurd bids that win, and their payments."""
        paid = {
            f"absurd{number}": self.bid(f"absurd{number}", ABSURD_MICROS, samples, 100)
            for number in range(ABSURD_BIDS)
        }
        won = {job_id: micros for job_id, micros in paid.items() if micros is not None}
        return list(won), sum(won.values())

    @property
    def levels(self) -> Levels:
        return self._posted.levels

    @property
    def sold_units(self) -> float:
        """Return the units that the zone has recorded as sold."""
        return self._posted.curve.sold_units

    @property
    def highest_offer(self) -> float:
        """The highest density that was ever sold and is remembered."""
        return self._posted.curve.sold_density(0.0)

    @property
    def _posted(self) -> PostedPrices:
        posted = self.bench.cell.zones[ZONE].auctioneer.prices
        assert isinstance(posted, PostedPrices)
        return posted


@cache
def opened(is_warm: bool, is_free: bool) -> Fleet:
    """To be forked: a day of honest bids takes seconds."""
    return Fleet(is_warm, is_free)


def work(samples: int) -> LoraWorkload:
    return LoraWorkload(
        work_samples=samples,
        dataset=Dataset(path="d.jsonl", samples=1_000),
        memory_gib=10.0,
        hyperparameters=LoraHyperparameters(rank=8, batch_size=8, sequence_length=512),
    )


NODE_SLOTS = {
    "a sliver": 0.02,
    "one slot": 1.0,
    "three slots": pytest.param(3.0, marks=pytest.mark.long),
    "more than there is": 8.4,
}


@pytest.mark.slow
@pytest.mark.parametrize("is_free", [False, True], ids=["energy", "free"])
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("node_slots", NODE_SLOTS.values(), ids=NODE_SLOTS)
def test_prices_recover_a_slot_after_withdrawal(node_slots, is_warm, is_free):
    """The rise of the levels is undone. Slots that the absurd bids filled, and gave back, may still be priced
    as full ones are, by what was really sold: at most the guard per unit, which falls from there."""
    fleet, spared = opened(is_warm, is_free).fork(), opened(is_warm, is_free).fork()
    won, paid_micros = fleet.attack(int(node_slots * NODE_SLOT_SAMPLES))
    assert len(won) > ABSURD_BIDS / 3
    returned_micros = sum(fleet.withdraw(job_id) for job_id in won)
    assert 0 <= returned_micros <= paid_micros
    spared.tick()
    fleet.tick()
    # But for a trace: amounts so different are not subtracted exactly.
    assert fleet.levels.guard <= spared.highest_offer * (1 + 1e-6)
    assert fleet.levels.base <= fleet.levels.guard
    dearer_micros = fleet.quote() - spared.quote()
    assert dearer_micros <= fleet.levels.guard * HONEST_SAMPLES + 1


@pytest.mark.parametrize("is_free", [False, True], ids=["energy", "free"])
@pytest.mark.parametrize("node_slots", [1.0, 3.0])
def test_withdrawn_bids_are_forgotten_despite_changed_room(node_slots, is_free):
    """On an empty ledger a unit is half of compute and half of memory, and a slot later of what was taken."""
    fleet = Fleet(is_warm=False, is_free=is_free)
    won, _ = fleet.attack(int(node_slots * NODE_SLOT_SAMPLES))
    sold = fleet.sold_units
    fleet.tick()
    kept = sum(not fleet.try_withdraw(job_id) for job_id in won)
    assert kept < len(won) / 2
    assert fleet.sold_units == pytest.approx(kept / len(won) * sold * (1 - 1 / HORIZON_SLOTS), rel=1e-6)


def overloaded_quotes(is_attacked: bool) -> list[int]:
    """Return the quotes while demand far exceeds the room, and in each slot a bid of one sample is withdrawn
    that was made in the slot before."""
    fleet = Fleet(is_warm=False, is_free=False)
    rng = random.Random("overload")
    quotes = []
    for slot in range(OVERLOADED_SLOTS + ATTACKED_SLOTS):
        if is_attacked and slot > OVERLOADED_SLOTS:
            fleet.try_withdraw(f"tiny{slot - 1}")
        if is_attacked and slot >= OVERLOADED_SLOTS:
            fleet.bid(f"tiny{slot}", 10**9, 1, 140)
        fleet.bid_honestly(rng, bids=30)
        fleet.tick()
        if slot >= OVERLOADED_SLOTS:
            quotes.append(fleet.quote())
    return quotes


@pytest.mark.long
def test_repeated_withdrawn_bids_lower_no_price():
    attacked, spared = sum(overloaded_quotes(True)), sum(overloaded_quotes(False))
    assert spared > ATTACKED_SLOTS * 20_000, "room has a price, besides operation"
    assert attacked >= 0.99 * spared


@pytest.mark.parametrize("is_free", [False, True], ids=["energy", "free"])
@pytest.mark.parametrize("node_slots", NODE_SLOTS.values(), ids=NODE_SLOTS)
def test_quote_on_empty_ledger_recovers_next_slot(node_slots, is_free):
    fleet = Fleet(is_warm=False, is_free=is_free)
    before = fleet.quote()
    won, _ = fleet.attack(int(node_slots * NODE_SLOT_SAMPLES))
    for job_id in won:
        fleet.withdraw(job_id)
    fleet.tick()
    assert fleet.quote() == before


def test_held_bids_raise_levels_by_their_share():
    """From L, at most to L (1 + `RISE_PER_SHARE` s)^n by n bids that take the part s of the room ahead each:
    240 node-slots of 2 % of the room raise the guard from a thirtieth of a micro per unit by e^9.3 at most,
    and an honest quote by a sixth."""
    fleet = Fleet(is_warm=False, is_free=False)
    before = fleet.quote()
    won, paid_micros = fleet.attack(NODE_SLOT_SAMPLES)
    assert len(won) == ABSURD_BIDS
    share = NODE_SLOT_SAMPLES / (UNITS_PER_SLOT * HORIZON_SLOTS)
    most = least_level(CHEAPEST_MICROS_PER_UNIT, 0.0) * (1 + RISE_PER_SHARE * share) ** ABSURD_BIDS
    assert fleet.levels.base <= fleet.levels.guard <= most
    assert fleet.quote() <= 1.2 * before
    assert paid_micros > 100 * before


def test_only_kept_bids_hold_prices_up():
    """Whoever keeps one absurd bid of many has raised prices by that one alone."""
    fleet = Fleet(is_warm=False, is_free=False)
    alone = fleet.fork()
    won, _ = fleet.attack(3 * NODE_SLOT_SAMPLES)
    for job_id in won[:-1]:
        fleet.withdraw(job_id)
    alone.bid(won[-1], ABSURD_MICROS, 3 * NODE_SLOT_SAMPLES, 100)
    fleet.tick()
    alone.tick()
    assert alone.quote() <= fleet.quote() <= 1.1 * alone.quote()


def test_transient_absurd_bids_leave_no_trace():
    fleet = Fleet(is_warm=False, is_free=False)
    before = fleet.quote()
    for slot in range(5):
        bids = [f"absurd{slot}-{number}" for number in range(60)]
        for job_id in [id for id in bids if fleet.bid(id, ABSURD_MICROS, 3 * NODE_SLOT_SAMPLES, 100)]:
            fleet.withdraw(job_id)
        fleet.tick()
        assert fleet.quote() <= 1.1 * before


def honest_value(fleet: Fleet, slots: int) -> int:
    """Return the value of the bids that win, at three per slot."""
    rng = random.Random("kept")
    value_micros = 0
    for _ in range(slots):
        value_micros += fleet.bid_honestly(rng, bids=3)
        fleet.tick()
    return value_micros


def test_kept_absurd_bids_cost_more_than_they_harm():
    """Room that is kept is paid for at the prices that the bids before have raised. In eight ways that were
    tried, with this demand and with twice as much, others lost 0.7 times the payment at most."""
    fleet = Fleet(is_warm=False, is_free=False)
    spared = fleet.fork()
    won, paid_micros = fleet.attack(3 * NODE_SLOT_SAMPLES)
    assert len(won) == ABSURD_BIDS
    lost_micros = honest_value(spared, DAY_SLOTS) - honest_value(fleet, DAY_SLOTS)
    assert 0 < lost_micros <= paid_micros


RESERVED_SLOTS = HORIZON_SLOTS - 1
NODES_PER_TYPE = 6
RUNNING_MICROS = NODES_PER_TYPE * RESERVED_SLOTS * (0.4 + 0.3) / 6 * 100_000
"""Cost to run all nodes for that time, six slots an hour, at the lowest tariff."""
RESERVED_SHARE = 0.97
"""Least share of a node's memory that each of these tasks reserves."""


def hog(gpu_type: str, gib: float) -> LoraWorkload:
    """A task that takes nearly all of a node's memory, and one sample of its compute per slot."""
    return LoraWorkload(
        work_samples=RESERVED_SLOTS,
        dataset=Dataset(path="d.jsonl", samples=1_000),
        memory_gib=gib,
        speed_samples_per_s={gpu_type: 1 / SLOT_S},
        hyperparameters=LoraHyperparameters(rank=8, batch_size=3, sequence_length=512),
    )


def reserve_all(fleet: Fleet) -> dict[str, int]:
    """Bid what is quoted for all of the fleet's memory, over the whole horizon; what each bid pays."""
    paid: dict[str, int] = {}
    for task in (hog("A100", 65.9), hog("A40", 33.9)):
        while (lowest := fleet.quote_for(task, HORIZON_SLOTS)) is not None:
            job_id = f"hog{fleet.slot}-{len(paid)}"
            micros = fleet.bid_for(job_id, lowest, task, HORIZON_SLOTS)
            assert micros is not None
            paid[job_id] = micros
    return paid


def test_reserved_memory_costs_like_used_memory():
    """Its own energy costs 0.004. On an empty ledger the room has no known value: all others are kept out for
    that sum, and lose a little more than it where a third of what the fleet can do is asked for."""
    fleet = Fleet(is_warm=False, is_free=False)
    spared = fleet.fork()
    paid = reserve_all(fleet)
    assert len(paid) == 2 * NODES_PER_TYPE
    paid_micros = sum(paid.values())
    assert paid_micros >= RESERVED_SHARE * RUNNING_MICROS
    assert honest_value(fleet, DAY_SLOTS) == 0
    assert 0 < honest_value(spared, DAY_SLOTS) <= 1.5 * paid_micros


def test_withdrawn_memory_reservation_pays_each_slot():
    fleet = Fleet(is_warm=False, is_free=False)
    for _ in range(3):
        paid = reserve_all(fleet)
        assert len(paid) == 2 * NODES_PER_TYPE
        returned_micros = sum(fleet.withdraw(job_id) for job_id in paid)
        assert sum(paid.values()) - returned_micros >= 0.99 * RESERVED_SHARE * RUNNING_MICROS
        fleet.tick()


BUSY_BIDS = 36
"""Per slot: about four times what the fleet can do."""
SPREE_SLOTS = 6
SPREE_BIDS = 36
SPREE_SHARE = SPREE_SLOTS * SPREE_BIDS / (12 * HORIZON_SLOTS)
"""Share of all node-slots that a bid could use when it begins."""


def busy_values(slots: int, is_raided: bool, is_withdrawn: bool) -> tuple[list[int], float]:
    """Return the value of the honest winners of each slot, from an empty ledger on, and the final base level.

    In the first slots of a raid a user buys node-slots on top, at ten units of money each, a hundred times
    what others offer: at the prices of an empty ledger they cost next to nothing."""
    fleet = Fleet(is_warm=False, is_free=False)
    rng = random.Random("busy")
    values, bought = [], []
    for slot in range(slots):
        for number in range(SPREE_BIDS if is_raided and slot < SPREE_SLOTS else 0):
            job_id = f"spree{slot}-{number}"
            if fleet.bid(job_id, 10**7, NODE_SLOT_SAMPLES, HORIZON_SLOTS - 1) is not None:
                bought.append(job_id)
        if is_withdrawn and slot == SPREE_SLOTS + 2:
            assert sum(map(fleet.try_withdraw, bought)) > len(bought) / 2
        values.append(fleet.bid_honestly(rng, bids=BUSY_BIDS))
        fleet.tick()
    return values, fleet.levels.base


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "is_withdrawn"),
    [(48, False), *[pytest.param(120, kept, marks=pytest.mark.long) for kept in (False, True)]],
)
def test_room_bought_first_costs_others_only_that(slots, is_withdrawn):
    """An eighth of the node-slots ahead is bought for next to nothing before their value is known. Others
    lose about what they would have made of them, but prices are found all the same: with a guard without
    bounds, a base level of 0 lasted for ever and others lost a third."""
    values, base = busy_values(slots, is_raided=True, is_withdrawn=is_withdrawn)
    spared, usual = busy_values(slots, is_raided=False, is_withdrawn=False)
    assert base > 0.6 * usual > 0
    assert sum(values) >= (1 - SPREE_SHARE) * sum(spared)
