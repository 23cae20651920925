"""The demo from end to end."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from infra.broker import watched_broker
from infra.demo.adapters import faulty_adapters
from infra.demo.datasets import write_datasets
from infra.demo.market import Market
from infra.demo.show import Show
from infra.deployment.deployment import Deployment, Layout, sole_user
from infra.deployment.folders import Folders
from infra.deployment.principals import principals
from infra.kafka.settings import broker_settings
from infra.log.following import BoardFollower
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from infra.summary import Summary, Tally
from infra.workloads.arrivals import Arrival
from infra.workloads.bids import Demands
from infra.workloads.workload import Workload, draw_workload
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.decisions import JobCompleted
from streams.replay import Verdict
from streams.replay_sources import verify_kafka

LEAST_ADAPTERS = 6
MARKET_LIMIT_S = 200.0
NODES_READY_S = 180.0
"""The first start ever makes the base model."""

_PREFIX = "millrace"
_LEAD_S = 1.0
_QUIET_S = 1.0
_DRAIN_S = 5.0
_DEMANDS = Demands(
    median_work_slots=4.0,
    longest_work_slots=6.0,
    # High, and on every layer: in so few steps the losses shall be seen to fall.
    learning_rates=(5e-3, 1e-2),
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)


@dataclass(frozen=True)
class DemoResult:
    """What the demo showed."""

    summary: Summary
    verdict: Verdict
    finished: bool
    """Whether every job was over in time."""
    killed_node: str | None
    returned: bool
    """Whether the killed executor's node came online again."""
    recovered: bool
    """Whether it trained again after that."""
    faulty_adapters: list[str]
    """Jobs whose adapter is not on disk as the log has it."""
    duration_s: float

    @property
    def shortcomings(self) -> list[str]:
        """What the demo was to show and did not."""
        found = []
        if len(self.summary.adapters) < LEAST_ADAPTERS:
            found.append(f"only {len(self.summary.adapters)} adapters were trained, {LEAST_ADAPTERS} are due")
        if not self.finished:
            found.append(f"not every job was over after {MARKET_LIMIT_S:g} s")
        if self.faulty_adapters:
            found.append(f"adapters are not on disk as reported: {', '.join(self.faulty_adapters)}")
        if self.killed_node is None:
            found.append("no executor was killed")
        elif not self.recovered and not self.returned:
            found.append(f"{self.killed_node} did not come online again after its executor was killed")
        elif not self.recovered:
            found.append(f"{self.killed_node} came online again after the kill and began no run since")
        if not self.verdict.ok:
            found.append("the replay does not verify")
        return found


def run_demo(
    cells_file: Path,
    arrivals: list[Arrival],
    seed: int,
    show: Show,
    keep: bool,
    secure: bool,
    started_s: float,
) -> DemoResult:
    """Run the demo in folders of its own, which are removed at the end unless `keep`.

    Raises:
        BrokerError: no broker can be run.
        CommandError: a service does not come up, or dies again and again.
        PublishError: the broker does not take an event.
        ReadError: the log cannot be read.
        ReplayError: the log cannot be read again.
    """
    with _folders(keep, show.say) as folders, sole_user(folders):
        datasets = write_datasets(folders.datasets, seed)
        show.say(f"{len(datasets)} datasets cut from Python's standard library")
        settings = broker_settings()
        settings = settings.model_copy(
            update={
                "bootstrap_servers": None,
                "broker_data_dir": folders.broker,
                "broker_secure": secure or settings.broker_secure,
            }
        )
        with watched_broker(settings) as broker:
            show.say(f"broker answers at {broker.bootstrap_servers}{', secured' if secure else ''}")
            connections = principals(broker, _PREFIX)
            targets = {role: Target(connection, _PREFIX) for role, connection in connections.items()}
            layout = Layout(cells_file, folders, targets["operators"], connections=connections)
            deployment = Deployment(layout, show.say)
            demands = replace(_DEMANDS, datasets=datasets)
            with (
                EventPublisher(targets["users"], "millrace/demo") as bids,
                EventPublisher(targets["vendors"], "millrace/demo") as quotes,
                deployment.running(),
                BoardFollower(targets["auditor"]) as follower,
            ):
                (cell,) = deployment.cells
                market = Market(deployment, follower, bids, show, cell.cell)
                finished = _trade(market, quotes, cell, arrivals, seed, demands)
            show.say("folding the ledger again")
            verdict = verify_kafka(connections["auditor"], _PREFIX)
        decisions = [record for record in market.records if isinstance(record, Decision)]
        completed = [d.outcome for d in decisions if isinstance(d.outcome, JobCompleted)]
        return DemoResult(
            summary=_summary(market),
            verdict=verdict,
            finished=finished,
            killed_node=market.killed_node,
            returned=market.returned,
            recovered=market.recovered,
            faulty_adapters=faulty_adapters(folders.adapters, completed),
            duration_s=time.monotonic() - started_s,
        )


def _trade(
    market: Market,
    quotes: EventPublisher,
    cell: CellConfigured,
    arrivals: list[Arrival],
    seed: int,
    demands: Demands,
) -> bool:
    """Run the market from the moment that all executors can train until every job is over."""
    market.show.say("executors load torch and the base model")
    market.await_nodes(NODES_READY_S)
    workload: Workload = draw_workload(cell, arrivals, time.time() + _LEAD_S, seed, demands)
    for quote in workload.quotes:
        quotes.publish(quote)
    market.show.say(f"{len(workload.bids)} bids arrive over {arrivals[-1].offset_s:.0f} s")
    deadline_s = time.monotonic() + MARKET_LIMIT_S
    finished = market.run(workload.bids, deadline_s - _DRAIN_S)
    if finished:
        market.read(_QUIET_S)
    else:
        market.drain(_QUIET_S, deadline_s)
    return finished


def _summary(market: Market) -> Summary:
    tally = Tally()
    for record in market.records:
        if isinstance(record, Decision):
            tally.take_decision(record)
        else:
            tally.take_event(record.event)
    return tally.summary()


@contextmanager
def _folders(keep: bool, say: Callable[[str], None]) -> Iterator[Folders]:
    root = Path(mkdtemp(prefix="millrace-demo-"))
    try:
        yield Folders(root)
    finally:
        if keep:
            say(f"kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
