"""The certificate of posted prices: never below the optimum, hardly above the best constant price."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.density_classes import CLASSES_PER_OCTAVE, MOST_CLASSES
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.posted.bound import COMPUTE_PARTS, ConstantPrices
from solvers.auction.posted.room import more_units
from tests.support.examples import examples
from tests.support.markets import demand, every_schedule, fleet, posted

HORIZON_SLOTS = 3
OPTIONS = [VendorOption("slow", 1, 1), VendorOption("fast", 4, 0)]


@dataclass(frozen=True)
class Bid:
    """A task and what is bid for it."""

    micros: int
    work_samples: int
    samples: tuple[int, int]
    memory_gib: float
    slots: int
    withdrawn_after_slots: int | None
    """None where it stays, or its plan is over by then."""


# Memory is scarce for some, and compute for others.
BIDS = st.builds(
    Bid,
    micros=st.integers(0, 60),
    work_samples=st.integers(1, 14),
    samples=st.tuples(st.integers(1, 6), st.integers(0, 4)),
    memory_gib=st.sampled_from([1.0, 2.0, 4.0]),
    slots=st.integers(1, HORIZON_SLOTS),
    withdrawn_after_slots=st.sampled_from([None, None, 0, 1, 2]),
)
SLOTS = st.lists(st.lists(BIDS, max_size=3), min_size=1, max_size=8).filter(
    lambda slots: sum(map(len, slots)) <= 6
)
"""Several periods of the certificate."""


class Run:
    """An auctioneer, and every plan of every bid that counts."""

    def __init__(self) -> None:
        self.fleet = fleet((1, 10.0, 6.0), (1, 6.0, 4.0))
        self.market = Market(self.fleet, HORIZON_SLOTS, 0, lambda index, slots: (slots % 4) + index + 0.0)
        self.auctioneer = posted(self.market, 600.0)
        self.plans: list[list[tuple[int, Placement, object]]] = []
        """Plans of each bid: welfare, node-slots and demand."""
        self.due = defaultdict(list)
        """By slot, what is withdrawn in it: an award, its demand, and its bid's plans."""

    @property
    def bound(self) -> int:
        return self.auctioneer.prices.bound_micros

    def advance(self, slot: int) -> None:
        """Let slots pass, and withdraw what is due."""
        for due_slot in sorted(self.due):
            if due_slot <= slot:
                self.auctioneer.advance(due_slot)
                for award, needed, plans in self.due.pop(due_slot):
                    self._withdraw(due_slot, award, needed, plans)
        self.auctioneer.advance(slot)

    def decide(self, slot: int, bid: Bid) -> None:
        """Decide a bid, whose plans count no more once it is withdrawn."""
        needed = demand(self.fleet, bid.work_samples, list(bid.samples), bid.memory_gib)
        last_slot = slot + bid.slots - 1
        plans = [
            (bid.micros - plan.vendor_micros - plan.operational_micros, plan.placement, needed)
            for plan in every_schedule(self.market, needed, OPTIONS, slot, last_slot, room_only=False)
        ]
        counting = [plan for plan in plans if plan[0] > 0]
        self.plans.append(counting)
        request = Request("j", needed, OPTIONS, slot, last_slot)
        award = self.auctioneer.decide(bid.micros, request, self.auctioneer.appraise(request))
        if award is not None and bid.withdrawn_after_slots == 0:
            self._withdraw(slot, award, needed, counting)
        elif award is not None and bid.withdrawn_after_slots is not None:
            self.due[slot + bid.withdrawn_after_slots].append((award, needed, counting))

    def _withdraw(self, slot: int, award, needed, plans) -> None:
        ahead = ahead_of(award.schedule.placement, slot)
        if ahead.slots:
            self.auctioneer.withdraw(ahead, needed, award.counted)
            self.auctioneer.welfare.planned_micros -= award.welfare_micros
            plans.clear()

    def optimum(self) -> int:
        """The most welfare of all that was bid, by trying everything."""
        return _best(self.fleet, self.plans, {})


def ahead_of(placement: Placement, slot: int) -> Placement:
    node_slots = [(at, row) for at, row in placement.node_slots() if at >= slot]
    return Placement(tuple(at for at, _ in node_slots), tuple(row for _, row in node_slots))


def _best(of, plans, used, beaten=0) -> int:
    """Return the most that the rest of the bids may bring beyond `beaten`, or that, where they bring no
    more."""
    if sum(max((welfare for welfare, _, _ in each), default=0) for each in plans) <= beaten:
        return beaten
    for welfare, placement, needed in sorted(plans[0], key=lambda plan: -plan[0]):
        held = dict(used)
        if all(_hold(of, held, node_slot, needed) for node_slot in placement.node_slots()):
            beaten = max(beaten, welfare + _best(of, plans[1:], held, max(beaten - welfare, 0)))
    return max(beaten, _best(of, plans[1:], used, beaten))


def _hold(of, held, node_slot, needed) -> bool:
    index = of.class_of_row[node_slot[1]]
    samples, gib = held.get(node_slot, (0, 0.0))
    held[node_slot] = samples, gib = samples + int(needed.samples[index]), gib + needed.memory_gib
    return samples <= of.classes[index].capacity_samples and gib <= of.classes[index].capacity_gib


@settings(max_examples=examples(2_000), deadline=None)
@given(SLOTS, st.lists(st.sampled_from((1, 1, 1, 2, 4, 9)), min_size=8, max_size=8))
def test_bound_exceeds_schedules_over_several_periods(slots, steps):
    """Slots are passed over, too, some of them more than a period."""
    run = Run()
    slot = 0
    for bids, step in zip(slots, steps, strict=False):
        run.advance(slot)
        for bid in bids:
            run.decide(slot, bid)
            assert run.auctioneer.welfare.planned_micros <= run.bound
        slot += step
    for later_slot in range(slot, slot + 2 * HORIZON_SLOTS + 1):
        run.advance(later_slot)
        assert run.optimum() <= run.bound, "whatever prices it is improved to"
        assert run.auctioneer.welfare.planned_micros <= run.bound


@settings(max_examples=examples(1_000), deadline=None)
@given(SLOTS, st.integers(0, 2**32))
def test_bound_exceeds_plans_after_released_room(slots, seed):
    rng = random.Random(seed)
    run = Run()
    held: list[tuple[Placement, object]] = []
    for slot, bids in enumerate(slots):
        run.auctioneer.advance(slot)
        for bid in bids:
            needed = demand(run.fleet, bid.work_samples, list(bid.samples), bid.memory_gib)
            request = Request("j", needed, OPTIONS, slot, slot + bid.slots - 1)
            award = run.auctioneer.decide(bid.micros, request, run.auctioneer.appraise(request))
            if award is not None:
                held.append((award.schedule.placement, needed))
            if held and rng.random() < 0.5:
                placement, needed = held.pop()
                run.auctioneer.release(ahead_of(placement, slot), needed)
            assert run.auctioneer.welfare.planned_micros <= run.bound
    run.auctioneer.advance(len(slots))
    assert run.auctioneer.welfare.planned_micros <= run.bound


OFFERS = st.lists(
    st.tuples(st.integers(1, 10**9), st.floats(1.0, 1_000.0), st.floats(1.0, 1_000.0)),
    min_size=1,
    max_size=20,
)
"""Net micros, and units of compute and of memory."""


def best_value(offers, room: float) -> float:
    """The least value of a constant price, on compute, on memory or half on each: it is that of an offer, or
    none."""
    values: list[float] = []
    for part in COMPUTE_PARTS:
        units = [part * compute + (1 - part) * memory for _, compute, memory in offers]
        net = [offer[0] for offer in offers]
        for price in (0.0, *(value / used for value, used in zip(net, units, strict=True))):
            gains = (max(value - price * used, 0.0) for value, used in zip(net, units, strict=True))
            values.append(math.fsum(gains) + price * room)
    return min(values)


@settings(max_examples=examples(1_000))
@given(OFFERS, st.floats(10.0, 10_000.0))
def test_chosen_price_is_best_within_class_width(offers, units_per_slot):
    prices = ConstantPrices(0, 10)
    prices.open(0, 1, units_per_slot)
    for offer in offers:
        prices.count_bid(*offer)
    total = sum(net for net, _, _ in offers)
    assert prices.bound_micros >= best_value(offers, 2 * units_per_slot)
    prices.advance(1)
    best = best_value(offers, 2 * units_per_slot)
    assert best <= prices.bound_micros <= best + total / CLASSES_PER_OCTAVE + 2 + len(offers)


@settings(max_examples=examples(500))
@given(OFFERS, OFFERS)
def test_withdrawal_next_period_costs_room_at_most(offers, withdrawn):
    """The settled value is that of the period's best price; without the withdrawn, the rest of it is
    the value of that same price."""
    prices = ConstantPrices(0, 10)
    prices.open(0, 3, 50.0)
    for offer in [*offers, *withdrawn]:
        prices.count_bid(*offer)
    prices.advance(10)
    settled = [point.settled_price for point in prices._points]
    # Bids of the present period make a price of their own, and are withdrawn again.
    for _ in range(3):
        prices.count_bid(10**12, 1_000.0, 1_000.0)
    prices.advance(11)
    for offer in withdrawn:
        prices.remove(*offer, slot=0)
    for _ in range(3):
        prices.remove(10**12, 1_000.0, 1_000.0, slot=10)
    prices.advance(12)
    total = sum(net for net, _, _ in [*offers, *withdrawn])
    values = []
    for part, price in zip(COMPUTE_PARTS, settled, strict=True):
        gains = (max(net - price * (part * c + (1 - part) * m), 0.0) for net, c, m in offers)
        values.append(math.fsum(gains) + price * 4 * 50.0)
    rounding = 1e-6 * total + 100
    assert min(values) - rounding <= prices.bound_micros
    assert prices.bound_micros <= min(values) + total / CLASSES_PER_OCTAVE + rounding


def test_absurd_bid_withdrawn_later_leaves_bound():
    """It comes in the last slot of a period, and is withdrawn in the first of the next."""
    prices, without = ConstantPrices(0, 10), ConstantPrices(0, 10)
    for one in (prices, without):
        one.advance(9)
        one.open(9, 12, 50.0)
        for _ in range(30):
            one.count_bid(1_000, 10.0, 10.0)
    prices.count_bid(10**15, 10.0, 10.0)
    for one in (prices, without):
        one.advance(10)
    assert prices.bound_micros > 10**14
    prices.remove(10**15, 10.0, 10.0, slot=9)
    assert 0 <= prices.bound_micros - without.bound_micros <= 3


@settings(max_examples=examples(500))
@given(OFFERS, OFFERS)
def test_bid_withdrawn_in_period_is_not_counted(offers, withdrawn):
    prices, without = ConstantPrices(0, 10), ConstantPrices(0, 10)
    for one in (prices, without):
        one.open(0, 3, 50.0)
    for offer in offers:
        prices.count_bid(*offer)
        without.count_bid(*offer)
    for offer in withdrawn:
        prices.count_bid(*offer)
    prices.advance(1)
    for offer in withdrawn:
        prices.remove(*offer, slot=0)
    for one in (prices, without):
        one.advance(2)
    # Classes are counted from the same first bid, and sums differ by rounding alone.
    total = sum(net for net, _, _ in [*offers, *withdrawn])
    rounding = 2e-6 * total + 100
    # Classes of withdrawn bids remain prices to choose from: the bound may be better by the width of one.
    least = without.bound_micros / (1 + 1 / CLASSES_PER_OCTAVE)
    assert least - rounding <= prices.bound_micros <= without.bound_micros + rounding


@pytest.mark.long
def test_year_keeps_two_horizons_of_state():
    rng = random.Random("a year")
    horizon_slots, days = 144, 365
    prices = ConstantPrices(0, horizon_slots)
    largest = 0
    for slot in range(days * horizon_slots):
        prices.advance(slot)
        if rng.random() < 0.1:
            prices.open(slot, slot + rng.randrange(horizon_slots), 1_000.0)
            units = rng.uniform(1.0, 1_000.0)
            prices.count_bid(
                int(units * rng.lognormvariate(0, 1) * 1_000), units, units * rng.uniform(0.1, 2.0)
            )
        if slot % horizon_slots == horizon_slots - 1:
            state = prices.state()
            assert len(state["open"]) <= 2 * horizon_slots
            largest = max(largest, len(msgpack.packb(state)))
    assert largest < 20_000


@settings(max_examples=examples(300))
@given(OFFERS, OFFERS, st.integers(1, 30))
def test_it_goes_on_from_its_state(offers, after, slots):
    prices = ConstantPrices(0, 10)
    prices.open(0, 3, 50.0)
    for offer in offers:
        prices.count_bid(*offer)
    prices.advance(slots)
    twin = ConstantPrices(0, 10)
    twin.restore(msgpack.unpackb(msgpack.packb(prices.state())))
    for one in (prices, twin):
        one.remove(*offers[0], slot=0)
        one.open(slots, slots + 4, 70.0)
        for offer in after:
            one.count_bid(*offer)
        one.advance(slots + 3)
    assert prices.state() == twin.state()
    assert prices.bound_micros == twin.bound_micros


def test_state_with_more_classes_continues():
    prices = ConstantPrices(0, 10)
    prices.open(0, 3, 1e6)
    for offer in MANY_CLASSES:
        prices.count_bid(*offer)
    twin = ConstantPrices(0, 10)
    twin.restore(msgpack.unpackb(msgpack.packb(prices.state())))
    for one in (prices, twin):
        for offer in MANY_CLASSES[::3]:
            one.remove(*offer, slot=0)
        one.count_bid(10**6, 1.0, 1.0)
        one.advance(1)
    assert prices.state() == twin.state()
    assert prices.bound_micros == twin.bound_micros


@settings(max_examples=examples(500))
@given(OFFERS, st.integers(0, 10**12))
def test_foreign_counts_are_added_and_dropped_once(offers, micros):
    prices = ConstantPrices(5, 10)
    prices.add_earlier_bound(micros, 5)
    assert prices.bound_micros == micros
    for offer in offers:
        prices.remove(*offer, slot=5)
        prices.remove(*offer, slot=4)
    assert prices.bound_micros == micros
    prices.open(5, 6, 10.0)
    for offer in offers:
        prices.count_bid(*offer)
    assert prices.bound_micros == micros + sum(net for net, _, _ in offers)


SIZES = st.tuples(st.integers(1, 100).map(float), st.integers(1, 100).map(float))


def first_and_then(before, now) -> Iterator[tuple[float, float]]:
    """Yield the compute and memory, in units, that plans before and after a node's change may hold."""
    (old_units, old_gib), (units, gib) = before, now
    for part in (0.0, 0.25, 0.5, 1.0):
        used_units, taken_gib = part * old_units, part * old_gib
        compute = used_units + max(units - used_units, 0.0)
        memory = taken_gib * old_units / old_gib + max(gib - taken_gib, 0.0) * units / gib
        yield compute, memory


@settings(max_examples=examples(500))
@given(SIZES, SIZES)
def test_gained_room_covers_plans_before_and_after(before, now):
    compute, memory = more_units(before, now)
    assert min(compute, memory) >= 0
    for held_compute, held_memory in first_and_then(before, now):
        assert held_compute <= before[0] + compute + 1e-9
        assert held_memory <= before[0] + memory + 1e-9


def test_unusable_slots_do_not_count():
    """Two bursts that ask for more than there is: the bound is twice that of one, however long the pause."""
    bounds = []
    for pause_slots in (0, 3, 8):
        prices = ConstantPrices(0, 20)
        for slot in (0, 4 + pause_slots):
            prices.open(slot, slot + 3, 10.0)
            for _ in range(100):
                prices.count_bid(1_000, 10.0, 10.0)
        prices.advance(4 + pause_slots)
        bounds.append(prices.bound_micros)
    assert bounds[0] == bounds[1] == bounds[2] == pytest.approx(2 * 4 * 1_000, rel=1e-3)


def test_resold_room_counts_each_sale():
    """All of it is sold and given back five times, to bids that are alike: a price that just clears one of
    the rounds must not stand for all."""
    run = Run()
    run.auctioneer.advance(0)
    needed = demand(run.fleet, 10, [10, 0], 1.0)
    request = Request("j", needed, OPTIONS[1:], 0, HORIZON_SLOTS - 1)
    awards = 0
    for _ in range(5):
        held = []
        while award := run.auctioneer.decide(10**6, request, run.auctioneer.appraise(request)):
            held.append(award)
        awards += len(held)
        for award in held:
            run.auctioneer.release(award.schedule.placement, needed)
    assert awards == 5 * HORIZON_SLOTS
    run.auctioneer.advance(1)
    assert run.auctioneer.welfare.planned_micros <= run.bound


def test_slots_of_two_periods_cost_higher_price():
    """Ten slots' room is asked for at 100 per unit in the last slot of a period, nine of them in the next
    one, whose own bids offer 1. All of the former fit, and are worth 10,000."""
    prices = ConstantPrices(0, 10)
    prices.advance(9)
    prices.open(9, 18, 10.0)
    for _ in range(20):
        prices.count_bid(1_000, 10.0, 10.0)
    prices.advance(10)
    prices.count_bid(10, 10.0, 10.0)
    prices.advance(11)
    assert prices.bound_micros >= 10_000


def test_shrunk_horizon_keeps_price_for_reached_periods():
    before = ConstantPrices(0, 10)
    before.advance(9)
    before.open(9, 18, 10.0)
    for _ in range(20):
        before.count_bid(1_000, 10.0, 10.0)
    prices = ConstantPrices(9, 3)
    prices.restore(before.state())
    for slot in range(10, 19):
        prices.advance(slot)
        assert prices.bound_micros >= 10_000


MANY_CLASSES = [(math.ceil(1.03**step * 10), 1.0 + step % 7, 2.0 + step % 5) for step in range(1_000)]
"""Offers of a thousand densities, the highest last: more than are distinguished."""


def test_excess_classes_keep_bound_valid_and_small():
    """Withdrawn bids are forgotten all the same."""
    prices = ConstantPrices(0, 10)
    prices.open(0, 3, 1e6)
    for offer in MANY_CLASSES:
        prices.count_bid(*offer)
        assert prices.bound_micros >= best_value(MANY_CLASSES[:1], 4e6)
    prices.advance(1)
    assert all(len(point.classes) <= MOST_CLASSES for point in prices._points)
    assert best_value(MANY_CLASSES, 4e6) <= prices.bound_micros
    for offer in MANY_CLASSES:
        prices.remove(*offer, slot=0)
    prices.advance(2)
    assert prices.bound_micros <= 1e-6 * sum(net for net, _, _ in MANY_CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("units_per_slot", [1.0, 1e6, 1e18])
def test_all_bids_count_with_few_densities(units_per_slot):
    """Offers of equal amounts for more and more units: where room is plenty, each counts in full."""
    prices = ConstantPrices(0, 10)
    prices.open(0, 3, units_per_slot)
    offers = [(10**9, 1.03**step, 1.03**step) for step in range(2 * MOST_CLASSES)]
    random.Random("order").shuffle(offers)
    for offer in offers:
        prices.count_bid(*offer)
    prices.advance(1)
    best = best_value(offers, 4 * units_per_slot)
    assert best * (1 - 1e-9) <= prices.bound_micros <= best * 1.1
    if units_per_slot == 1e18:
        assert prices.bound_micros == len(offers) * 10**9


@pytest.mark.parametrize("withdrawn_at", ["once", "last"])
def test_many_tiny_bids_leave_bound(withdrawn_at):
    """One unit each, 600 densities above those of honest bids, which ask for twice the room; all are
    withdrawn, one by one or when all have come."""
    rng = random.Random("honest")
    honest = [
        (int(units * 1_000 * rng.lognormvariate(0, 1)), units, units)
        for units in (rng.uniform(1, 20) for _ in range(800))
    ]
    tiny = [(int(10**6 * 2 ** (step / 32)), 1.0, 1.0) for step in range(600)]
    prices, without = ConstantPrices(0, 10), ConstantPrices(0, 10)
    for one in (prices, without):
        one.open(0, 3, 1_000.0)
        for offer in honest[:400]:
            one.count_bid(*offer)
    for offer in tiny:
        prices.count_bid(*offer)
        if withdrawn_at == "once":
            prices.remove(*offer, slot=0)
    if withdrawn_at == "last":
        for offer in tiny:
            prices.remove(*offer, slot=0)
    for one in (prices, without):
        for offer in honest[400:]:
            one.count_bid(*offer)
        one.advance(10)
    assert prices.bound_micros == pytest.approx(without.bound_micros, rel=0.01)
    assert without.bound_micros < 0.9 * sum(net for net, _, _ in honest)
