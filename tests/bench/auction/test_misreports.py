"""Lies that are closed do not pay, played to the end; and where a rule is taken away, the harness sees it."""

import random
from dataclasses import replace

import pytest

from bench.auction.misreports import LIES, changes_of, result_of, trials_of, truth
from bench.auction.play import (
    SLOT_S,
    UNIT_MICROS,
    DeclaredTask,
    Play,
    TrueExecutors,
    World,
    draw_world,
    utility,
)
from schemas.auction.settings import AuctionPolicy, PdftspPolicy
from schemas.fleet import RunFailed, RunFinished, RunProgressed
from schemas.lora import Dataset, LoraHyperparameters
from schemas.lora_commands import RunOrder, SlotAssigned
from tests.support.examples import LONG, examples

WORLDS = 60 if LONG else 20
GAINLESS = (
    *("bid", "deadline earlier", "more work", "memory under", "memory over", "fewer GPU types"),
    *("dataset under", "dataset over", "speed over", "two names", "bid, withdraw, bid"),
)


def declared_policy() -> PdftspPolicy:
    """Bounds at the median of what is bid."""
    return PdftspPolicy(
        kind="pdftsp",
        money_unit_micros=UNIT_MICROS,
        max_value_per_compute_micros=UNIT_MICROS,
        max_value_per_memory_micros=2 * UNIT_MICROS,
        max_density_units=10.0,
    )


def world_of(number: int, policy=None) -> World:
    return draw_world(random.Random(f"test/{number}"), AuctionPolicy() if policy is None else policy)


def gainful(kind: str, policy=None, worlds: int = WORLDS, seed: int = 0) -> int:
    """In how many worlds a lie gains."""
    policy = AuctionPolicy() if policy is None else policy
    changes = changes_of(policy, seed, range(worlds), {kind: LIES[kind]})[kind]
    return sum(change > 0 for change in changes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GAINLESS)
def test_prevented_lie_never_gains(kind):
    assert gainful(kind, worlds=examples(200)) == 0


def fall_of(play: Play) -> float:
    """By what part prices may fall with the next slot."""
    (zone,) = play._cell.zones.values()
    prices = zone.auctioneer.prices
    return prices.levels.fall(prices.curve)


@pytest.mark.long
def test_waiting_gains_at_most_fall_of_prices():
    """A price of p is at least (1 - f) p a slot later: all that a user can gain by waiting is the rest."""
    fell = 0
    for world in map(world_of, range(2 * WORLDS)):
        play = Play(world).fork()
        price = play.lowest_winning_micros(world.task)
        if world.task.deadline_slot > world.slot + 1 + world.horizon_slots or price is None:
            continue
        least = float(price - 1)
        for _ in range(min(world.task.deadline_slot - world.slot - 2, 6)):
            play.others_follow()
            least *= 1 - fall_of(play)
            play.wait(1)
            later = play.lowest_winning_micros(world.task)
            assert later is None or later >= least
            fell += later is not None and later < price
    assert fell > 0, "and now and then they do"


@pytest.mark.long
def test_waiting_with_a_bid_pays_no_more():
    paid_less = 0
    for number, world in enumerate(map(world_of, range(3 * WORLDS))):
        strategy = LIES["waiting with a bid in hand"](world, random.Random(f"test/{number}"))
        if strategy is None:
            continue
        honest, waiting = (Play(world).fork() for _ in range(2))
        truth(honest)
        wanted = strategy(waiting)
        assert set(wanted) <= waiting.live | waiting.published.keys() or not honest.live
        if honest.live:
            assert waiting.paid_micros <= honest.paid_micros
            paid_less += waiting.paid_micros < honest.paid_micros
    assert paid_less > 0


@pytest.mark.slow
def test_slower_claim_gains_nothing_with_measured_task():
    measured = [world for world in map(world_of, range(2 * WORLDS)) if world.has_row]
    assert len(measured) > WORLDS / 2
    for number, world in enumerate(measured):
        play = Play(world)
        lie = LIES["speed under"](world, random.Random(f"test/{number}"))
        assert utility(play, lie) <= utility(play, truth)


@pytest.mark.long
def test_slower_claim_gains_often_with_full_quotas():
    assert gainful("speed under") <= 1
    assert gainful("speed under", declared_policy()) >= 3


@pytest.mark.long
def test_published_payment_rewards_other_bids():
    published = declared_policy().model_copy(update={"payment": "published"})
    found = 0
    for number in range(2 * WORLDS):
        world = world_of(number, published)
        play, lie = Play(world), LIES["bid"](world, random.Random(f"test/{number}"))
        found += utility(play, lie) > utility(play, truth)
    assert found >= 1


@pytest.mark.long
def test_unmeasured_memory_rewards_understating(monkeypatch):
    end = TrueExecutors._end

    def unmeasured(self, command, order, base):
        return end(self, command, order.model_copy(update={"memory_limit_gib": None}), base)

    monkeypatch.setattr(TrueExecutors, "_end", unmeasured)
    assert gainful("memory under") >= 3


@pytest.mark.long
def test_uncounted_data_reward_understating(monkeypatch):
    begin = TrueExecutors.begin

    def uncounted(self, command):
        for started in begin(self, command):
            yield started.model_copy(update={"dataset_samples": None})

    monkeypatch.setattr(TrueExecutors, "begin", uncounted)
    assert gainful("dataset under") >= 3


def test_seed_determines_worlds_and_tries():
    kinds = {kind: LIES[kind] for kind in ("speed under", "two names")}
    first, second = (changes_of(AuctionPolicy(), 7, range(4), kinds) for _ in range(2))
    assert first == second
    assert world_of(3) == world_of(3) != world_of(4)


@pytest.mark.parametrize("number", range(20))
def test_true_winning_bid_meets_its_deadline(number):
    world = world_of(number)
    play = Play(world).fork()
    truth(play)
    has_won = bool(play.live)
    play.others_follow()
    play.finish()
    assert play.published.keys() == ({"mine"} if has_won else set())
    assert play.utility_micros(["mine"]) == (world.value_micros - play.paid_micros if has_won else 0)
    assert 0 <= play.paid_micros <= world.value_micros


def test_late_publication_is_worthless():
    world = next(world for world in map(world_of, range(WORLDS)) if utility(Play(world), truth) > 0)
    play = Play(world).fork()
    truth(play)
    play.others_follow()
    play.finish()
    late = replace(world, task=replace(world.task, deadline_slot=play.published["mine"]))
    assert play.utility_micros(["mine"]) > 0
    play.world = late
    assert play.utility_micros(["mine"]) == -play.paid_micros


TASK = DeclaredTask(
    work_samples=100,
    deadline_slot=9,
    memory_gib=3.0,
    speed_samples_per_s={"large": 30.5 / SLOT_S},
    dataset_samples=77,
    needs_preprocessing=False,
    batch_size=4,
)


def run_of(quota: int, limit_gib: float | None = None, **true):
    """Return an executor's report of a run of that task."""
    executors = TrueExecutors({"j": replace(TASK, **true)}, {"n": "large"})
    order = RunOrder(
        run_id="0/j",
        job_id="j",
        user="u",
        work_samples=100,
        quota_samples=quota,
        resume_samples=0,
        dataset=Dataset(path="d.jsonl", samples=1),
        hyperparameters=LoraHyperparameters(batch_size=4),
        memory_limit_gib=limit_gib,
    )
    (started,) = executors.begin(
        SlotAssigned(
            zone="z", base_model="b", node="n", slot=0, slot_start_s=0, slot_end_s=SLOT_S, runs=(order,)
        )
    )
    assert (started.samples_done, started.dataset_samples) == (0, 77)
    (end,) = executors.end()
    assert list(executors.end()) == []
    return end


def test_run_ends_with_whole_batch_at_quota():
    end = run_of(25)
    assert isinstance(end, RunProgressed)
    assert end.samples_done == 28
    assert end.node_s == pytest.approx(28 / 30.5 * SLOT_S)
    assert end.memory_gib is None


def test_slow_run_has_whole_slot():
    end = run_of(50)
    assert (end.samples_done, end.node_s) == (30, pytest.approx(30 / 30.5 * SLOT_S))


def test_run_above_its_memory_reports_amount():
    end = run_of(25, limit_gib=2.5)
    assert isinstance(end, RunFailed)
    assert (end.permanent, end.memory_gib) == (True, 3.0)
    assert run_of(25, limit_gib=3.0).memory_gib == 3.0


def test_the_last_of_the_work_publishes():
    assert isinstance(run_of(100, speed_samples_per_s={"large": 1.0}), RunFinished)


@pytest.mark.parametrize(("quick", "worlds"), [(True, 20), (False, 7_000)])
def test_trials_have_every_world_once(quick, worlds):
    trials = trials_of(quick, 3)
    assert [number for each in trials for number in range(each.first, each.last + 1)] == list(range(worlds))
    assert {each.seed for each in trials} == {3}


def test_splits_and_waiting_count_in_one_figure():
    result = result_of([{kind: [0.0, -0.5] for kind in LIES}, {"split in two": [0.1, 0.3, -0.2, 0.0]}])
    count = 2 * len(LIES) + 4
    assert {figure.name: (figure.value, figure.runs) for figure in result.measurements} == {
        "gainful_misreports_pct": (pytest.approx(100 * 2 / count), count),
        "gainful_statements_pct": (0.0, 2 * (len(LIES) - 4)),
    }
    assert "20 % of the value (split in two)" in result.measurements[0].note
    (table,) = result.tables
    (line,) = [line for line in table.rows if line["kind"] == "split in two"]
    assert list(line.values())[1:] == [6, pytest.approx(100 / 3), pytest.approx(20.0)]
