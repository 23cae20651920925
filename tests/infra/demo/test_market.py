"""The demo's market phase against a scripted log, on a clock that only moves when the market waits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from infra.demo import market as market_module
from infra.demo import stage as stage_module
from infra.demo.market import HOLD_LIMIT_S, Market
from infra.demo.stage import Stage
from infra.views.board import Board
from infra.views.jobs import Job
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import JobCompleted, NodeStatusChanged
from schemas.fleet import NodeOnline, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted
from tests.support.cells import EPOCH_S, bid, configuration

NODE = "a1"
LIMIT_S = 200.0
BIDS = [
    TimedEvent(
        EPOCH_S + index,
        bid(f"j{index}", deadline_s=EPOCH_S + index + 60.0),
    )
    for index in range(10)
]


_NUMBERS = count()


def fresh(event: Event) -> Envelope:
    """The event under an id that was not seen before."""
    return Envelope(f"event-{next(_NUMBERS)}", "tests", "", event)


@dataclass
class Clock:
    """Both of `time`'s clocks."""

    now_s: float = EPOCH_S

    def time(self) -> float:
        return self.now_s

    monotonic = time


@dataclass
class Follower:
    """Shows what was put for its time, or ticks without end."""

    clock: Clock
    boards: dict[str, Board]
    coming: list[tuple[float, Event | NodeStatusChanged]] = field(default_factory=list)
    ticks: bool = False

    def poll(self, timeout_s: float) -> list[Envelope | Decision]:
        self.clock.now_s += min(timeout_s, 0.1) if self.ticks else timeout_s
        due = [what for time_s, what in self.coming if time_s <= self.clock.now_s]
        self.coming = [(time_s, what) for time_s, what in self.coming if time_s > self.clock.now_s]
        if self.ticks:
            due.append(ClockTicked(cell="c", time_s=self.clock.now_s))
        return list(self._records(due))

    def _records(self, due: Iterable[Event | NodeStatusChanged]) -> Iterable[Envelope | Decision]:
        for what in due:
            if isinstance(what, NodeStatusChanged):
                decision = Decision(f"c-{next(_NUMBERS)}-0", "c", "e", self.clock.now_s, what, "")
                self.boards["c"].take_decision(decision)
                yield decision
            else:
                envelope = fresh(what)
                self.boards["c"].take_event(envelope)
                yield envelope


class Play:
    """A market whose first two jobs are done a second after they came, and whose third trains until `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.follower = Follower(self.clock, {"c": Board("c")})
        self.sent: list[tuple[float, JobSubmitted]] = []
        self.said: list[str] = []
        self.kills: list[float] = []
        for module in (market_module, stage_module):
            monkeypatch.setattr(module, "time", self.clock)
        monkeypatch.setattr(market_module.os, "kill", lambda pid, number: self.kills.append(self.clock.now_s))
        for event in (configuration(), NodeOnline(cell="c", node=NODE, base_model="tiny", runners=("lora",))):
            self.board.take_event(fresh(event))
        collaborators: Any = {
            "deployment": SimpleNamespace(
                cells=[configuration()],
                executors={("c", NODE): SimpleNamespace(pid=7)},
                keep_running=self._keep_running,
            ),
            "follower": self.follower,
            "publishers": {"users": SimpleNamespace(publish=self._publish)},
            "show": SimpleNamespace(say=self.said.append, update=lambda board, records: None),
        }
        self.stage = Stage(**collaborators)
        self.market = Market(self.stage, BIDS)
        self.on_pass: Callable[[], None] = lambda: None

    @property
    def board(self) -> Board:
        return self.follower.boards["c"]

    def run(self) -> bool:
        self.stage.play([self.market], self.clock.now_s + LIMIT_S)
        return self.market.finished

    def comes(self, time_s: float, what: Event | NodeStatusChanged) -> None:
        self.follower.coming.append((time_s, what))

    def node_returns(self, time_s: float) -> None:
        self.comes(self.kill_s + 8, status("down"))
        self.comes(time_s, NodeOnline(cell="c", node=NODE, base_model="tiny", runners=("lora",)))
        self.comes(time_s, status("up"))

    @property
    def kill_s(self) -> float:
        return self.kills[0]

    def _publish(self, bid: JobSubmitted) -> None:
        self.sent.append((self.clock.now_s, bid))
        self.board.take_event(fresh(bid))
        if bid.job_id == "j2":
            self.comes(self.clock.now_s, started("j2"))
            self.comes(self.clock.now_s, progressed("j2"))
        elif len(self.sent) <= 2:
            finish(self.board.jobs.by_id[bid.job_id])

    def _keep_running(self) -> None:
        self.on_pass()


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def status(to: Any) -> NodeStatusChanged:
    return NodeStatusChanged(zone="z", node=NODE, status=to, reason={"up": "online", "down": "silent"}[to])


def started(job_id: str) -> RunStarted:
    return RunStarted(cell="c", node=NODE, run_id=f"1/{job_id}", job_id=job_id, samples_done=0)


def progressed(job_id: str) -> RunProgressed:
    return RunProgressed(
        cell="c",
        node=NODE,
        run_id=f"1/{job_id}",
        job_id=job_id,
        samples_done=5,
        loss=1.0,
        node_s=1.0,
        complete=False,
    )


def finish(job: Job) -> None:
    job.state = "completed"
    job.completed = JobCompleted(
        zone="z",
        job_id=job.job_id,
        user="u",
        reason="work_done",
        node=NODE,
        payment_micros=1,
        samples_done=5,
        loss=1.0,
    )


def finish_all(board: Board) -> None:
    for job in board.jobs.by_id.values():
        finish(job)


def test_the_last_bids_wait_for_the_killed_node_and_keep_their_slack(play: Play) -> None:
    back_s = EPOCH_S + 50

    def on_pass() -> None:
        if play.kills and not play.follower.coming and not play.market.returned:
            play.node_returns(back_s)
        if len(play.sent) == len(BIDS) and not play.market.recovered:
            play.comes(play.clock.now_s, started("j9"))
        if play.market.recovered:
            finish_all(play.board)

    play.on_pass = on_pass
    assert play.run()
    assert play.market.killed_node == NODE
    assert play.market.recovered
    assert [bid.job_id for _, bid in play.sent] == [timed.event.job_id for timed in BIDS]
    assert [time_s >= back_s for time_s, _ in play.sent] == [False] * 8 + [True] * 2
    for (time_s, sent), timed in zip(play.sent, BIDS, strict=True):
        assert sent.terms.deadline_s - time_s == pytest.approx(60.0, abs=0.3), timed.time_s


def test_all_else_over_the_node_is_waited_for_before_the_last_bids(play: Play) -> None:
    def on_pass() -> None:
        if play.kills:
            finish_all(play.board)

    play.on_pass = on_pass
    play.run()
    assert [time_s - EPOCH_S >= HOLD_LIMIT_S for time_s, _ in play.sent] == [False] * 8 + [True] * 2
    assert any("wait no longer: a1 is not back" in line for line in play.said)
    assert not play.market.returned


def test_a_run_from_before_the_return_does_not_count(play: Play) -> None:
    def on_pass() -> None:
        if play.kills and not play.follower.coming and not play.market.returned:
            play.comes(play.clock.now_s, started("j3"))
            play.node_returns(play.clock.now_s + 20)
        if len(play.sent) == len(BIDS):
            finish_all(play.board)

    play.on_pass = on_pass
    assert play.run()
    assert play.market.returned
    assert not play.market.recovered


def test_with_nothing_to_kill_the_last_bids_go_out(play: Play) -> None:
    play.on_pass = lambda: finish_all(play.board)
    assert play.run()
    assert len(play.sent) == len(BIDS)
    assert play.market.killed_node is None
    assert play.clock.now_s < EPOCH_S + 20


def test_running_and_draining_end_at_their_deadlines_though_records_keep_coming(play: Play) -> None:
    play.follower.ticks = True
    assert not play.run()
    assert play.clock.now_s == pytest.approx(EPOCH_S + LIMIT_S, abs=0.3)
    play.stage.drain([], 1.0, play.clock.now_s + 5)
    assert play.clock.now_s == pytest.approx(EPOCH_S + LIMIT_S + 5, abs=0.3)


def test_draining_ends_when_nothing_comes(play: Play) -> None:
    play.stage.drain([], 1.0, play.clock.now_s + 5)
    assert play.clock.now_s == EPOCH_S + 1
