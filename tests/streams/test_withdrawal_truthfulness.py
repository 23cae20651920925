"""No way of bidding, withdrawing and bidding again gains over the true value, bid at once.

What is shown is of one task whose user arrives now, while others only bid. `test_waiting_may_gain` is what is
not: the auction is truthful in what is bid, not in when.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.decisions import JobAdmitted, JobWithdrawn
from schemas.jobs import JobSubmitted
from streams.cell.state_machine import Cell
from tests.streams.test_truthfulness import COMPETITORS, MONEY, TASKS, market_after
from tests.support.cells import EPOCH_S, UNIT, Bench, bid, withdraw, zone
from tests.support.examples import examples

LATER_COMPETITORS = st.lists(st.tuples(MONEY, TASKS), max_size=3)


@dataclass
class User:
    """One user in a market, and what the user has paid."""

    bench: Bench
    competitors: list[JobSubmitted]
    """Jobs that `wait` lets bid."""
    paid_micros: int = 0
    running: list[str] = field(default_factory=list)

    def bid(self, job_id: str, micros: int, task: dict) -> None:
        (outcome,) = self.bench.send(bid(job_id, micros / UNIT, **task))
        if isinstance(outcome, JobAdmitted):
            self.paid_micros += outcome.payment_micros
            self.running.append(job_id)

    def withdraw(self, job_id: str) -> None:
        for outcome in self.bench.send(withdraw(job_id)):
            if isinstance(outcome, JobWithdrawn):
                self.paid_micros -= outcome.returned_micros
                self.running.remove(job_id)

    def wait(self) -> None:
        self.bench.send(*self.competitors)

    def gain(self, value_micros: int) -> int:
        """Return the utility of a user who values the task `mine` at `value_micros`, and any other at
        nothing."""
        return value_micros * ("mine" in self.running) - self.paid_micros


Strategy = Callable[[User], None]


def strategies(task: dict, bids: list[int], sybils: list[tuple[int, dict]]) -> dict[str, Strategy]:
    """Everything but the truth."""
    first, second = bids

    def misreported(user: User) -> None:
        user.bid("mine", first, task)

    def regretted(user: User) -> None:
        user.bid("mine", first, task)
        user.wait()
        user.withdraw("mine")

    def again_at_once(user: User) -> None:
        user.bid("trial", first, task)
        user.withdraw("trial")
        user.bid("mine", second, task)

    def again_later(user: User) -> None:
        user.bid("trial", first, task)
        user.wait()
        user.withdraw("trial")
        user.bid("mine", second, task)

    def twice_and_the_dearer_back(user: User) -> None:
        user.bid("trial", first, task)
        user.bid("mine", second, task)
        user.withdraw("trial")

    def behind_sybils(user: User) -> None:
        for number, (amount, other) in enumerate(sybils):
            user.bid(f"sybil{number}", amount, other)
        user.wait()
        for number in range(len(sybils)):
            user.withdraw(f"sybil{number}")
        user.bid("mine", second, task)

    def split(user: User) -> None:
        half = task | {"work_samples": max(task["work_samples"] // 2, 1)}
        for number in range(2):
            user.bid(f"half{number}", first, half)
        for number in range(2):
            user.withdraw(f"half{number}")
        user.bid("mine", second, task)

    return {
        strategy.__name__: strategy
        for strategy in (
            *(misreported, regretted, again_at_once, again_later),
            *(twice_and_the_dearer_back, behind_sybils, split),
        )
    }


@settings(max_examples=examples(150), deadline=None)
@given(
    COMPETITORS,
    LATER_COMPETITORS,
    TASKS,
    MONEY,
    st.lists(MONEY, min_size=2, max_size=2),
    st.lists(st.tuples(MONEY, TASKS), min_size=1, max_size=3),
)
def test_no_strategy_with_withdrawals_gains_over_the_truth(competitors, later, task, value, bids, sybils):
    check_no_strategy_gains(market_after(competitors), later, task, value, bids, sybils)


def check_no_strategy_gains(snapshot: bytes, later, task, value: int, bids: list[int], sybils) -> None:
    """No way of bidding and withdrawing within a slot brings more than the truth, which costs nothing.

    Args:
        later: bids of others that come in the meantime.

    Raises:
        AssertionError: naming the strategy.
    """
    coming = [bid(f"later{number}", micros / UNIT, **other) for number, (micros, other) in enumerate(later)]

    def gain(strategy: Strategy) -> int:
        bench = Bench(cell=Cell.restore(snapshot))
        bench.ledger = [None] * (bench.cell.offset + 1)
        user = User(bench, coming)
        strategy(user)
        return user.gain(value)

    truth = gain(lambda user: user.bid("mine", value, task))
    assert truth >= 0
    for amounts in (bids, [bids[0], value], [30 * UNIT, value]):
        for name, strategy in strategies(task, amounts, sybils).items():
            assert gain(strategy) <= truth, name


@pytest.mark.parametrize("waits", [False, True])
def test_waiting_may_gain_when_others_give_room_back(waits):
    # One node for two slots, all of it held by a competitor who then withdraws.
    bench = Bench.configured(zones=(zone(nodes=zone().nodes[:1]),))
    task = {"work_samples": 200, "deadline_s": EPOCH_S + 20, "speed_samples_per_s": {"fast": 10.0}}
    bench.send(bid("competitor", 3.0, user="competitor", **task))
    user = User(bench, [])
    if not waits:
        user.bid("mine", 10**3 * UNIT, task)
    bench.send(withdraw("competitor", user="competitor"))
    if waits:
        user.bid("mine", 10**3 * UNIT, task)
    assert (user.gain(10**3 * UNIT) > 0) == waits
