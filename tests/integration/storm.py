"""A storm: bids flow through Kafka while the worker is killed again and again, and what must come of it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest

from schemas.base import Event
from schemas.cells import CellConfigured, Node
from schemas.codec import Decision, decode_decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.jobs import JobSubmitted
from schemas.registry import INTAKE_EVENTS
from streams.cell.ledger import ledger_event_of
from streams.cell.state_machine import Cell
from tests.integration.deployment import Deployment, Worker, until
from tests.support.cells import configuration, zone
from tests.support.histories import recorded

CELLS = ("alpha", "beta")
BIDS_PER_SLOT = 80
PATIENCE_SLOTS = 36
"""While a worker is away the clock gets ahead of the bids, which are all of one user and wait their turn. So
a slot lasts for many bids, and deadlines are far: bids win and lose all the same."""
FIRST_LIFE_S = 8.0
"""About how long a worker takes to come back on a busy machine; later lives are measured."""
LONGEST_LIFE_S = 1.0
"""Longest time that a worker lives after its first decision."""
PROOF_TIMEOUT_S = 120.0


def market(cell: str) -> CellConfigured:
    """A cell of thirty nodes."""
    fast = [Node(id=f"a{number}", gpu_type="fast", tariff="t") for number in range(20)]
    slow = [Node(id=f"b{number}", gpu_type="slow", tariff="t") for number in range(10)]
    return configuration(cell=cell, zones=(zone(nodes=(*fast, *slow)),))


def rehearse(seed: int, bids: int) -> list[Event]:
    """Return a history of `bids` bids in all, shared by the cells, without configurations."""
    stories = [
        recorded(
            random.Random(f"{seed}/{cell}"), market(cell), bids // len(CELLS), BIDS_PER_SLOT, PATIENCE_SLOTS
        )[1:]
        for cell in CELLS
    ]
    told = (event for row in zip_longest(*stories) for event in row if event is not None)
    # Events that intake makes of nodes itself.
    return [event for event in told if not isinstance(event, INTAKE_EVENTS)]


class Flow:
    """Sends events at such a pace that in each life of a worker there is something underway."""

    def __init__(self, deployment: Deployment, events: list[Event], lives: int) -> None:
        self._deployment = deployment
        self._events = events
        self._portion = len(events) // lives + 1
        self._allowed = 0
        self._pause_s = 0.0
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def release(self, over_s: float) -> None:
        """Let the next portion flow, over about so many seconds."""
        self._pause_s = over_s / self._portion
        self._allowed += self._portion

    def finish(self) -> None:
        """Wait until everything is sent, as fast as the broker takes it."""
        self._pause_s = 0.0
        self._allowed = len(self._events)
        self._thread.join()

    def _send(self) -> None:
        for number, event in enumerate(self._events):
            while number >= self._allowed:
                time.sleep(0.02)
            self._deployment.send([event])
            time.sleep(self._pause_s)


def storm(deployment: Deployment, seed: int, bids: int, kills: int) -> None:
    """Kill the worker at random moments while events flow, start it at once each time, and prove the log.

    Raises:
        AssertionError: if a bid is lost, decided twice or otherwise than an undisturbed cell would.
    """
    chance = random.Random(seed)
    story = rehearse(seed, bids)
    worker = _start(deployment)
    deployment.configure(*CELLS)
    flow = Flow(deployment, story, kills + 1)
    life_s = FIRST_LIFE_S
    for _ in range(kills):
        began_s = time.monotonic()
        before = deployment.count("decisions")
        flow.release(life_s)
        until(lambda before=before: deployment.count("decisions") > before, "a decision")
        time.sleep(chance.uniform(0.0, LONGEST_LIFE_S))
        worker.kill()
        worker = _start(deployment)
        life_s = time.monotonic() - began_s
    flow.finish()

    verdict = deployment.proven(PROOF_TIMEOUT_S)

    assert worker.running, worker.output
    assert verdict.events >= len(story)
    check_log(deployment, verdict.settled, [event for event in story if isinstance(event, JobSubmitted)])
    until(lambda: deployment.committed_lag() == 0, "everything acknowledged")


def check_log(deployment: Deployment, settled: Mapping[str, int], bids: list[JobSubmitted]) -> None:
    """The log equals an undisturbed fold's, by id and byte; each bid is decided and each winner charged once.

    Does not lean on `streams.replay.replay`, which the verdict comes from.

    Args:
        settled: by cell, the last ledger offset to check. The log grows all the while: no node reports
            its presence, and after some seconds the worker finds all silent.
    """

    def is_settled(decision: Decision) -> bool:
        return decision.place[0] <= settled[decision.cell]

    expected = {each.id: each.canonical for each in _undisturbed(deployment) if is_settled(each)}
    found: dict[str, set[bytes]] = {}
    for record in deployment.records("decisions"):
        value = record.value or b""
        if is_settled(decision := decode_decision(value)):
            found.setdefault(decision.id, set()).add(value)
    assert {id: {value} for id, value in expected.items()} == found

    decisions = [decode_decision(value) for value in expected.values()]
    admitted, rejected, ended = (
        [(d.cell, d.outcome) for d in decisions if isinstance(d.outcome, kind)]
        for kind in (JobAdmitted, JobRejected, JobCompleted | JobRefunded | JobWithdrawn)
    )
    decided = Counter((cell, outcome.job_id) for cell, outcome in [*admitted, *rejected])
    assert decided == Counter((bid.cell, bid.job_id) for bid in bids), "every bid is decided, once"
    closed = Counter((cell, outcome.job_id) for cell, outcome in ended)
    charged = Counter((cell, outcome.job_id) for cell, outcome in admitted)
    assert not closed - charged, "only who was charged ends, and once"
    assert min(len(admitted), len(rejected)) > len(bids) // 5, "a mix of winners and losers"
    assert all(o.reason != "unknown_zone" for _, o in rejected), "every bid reaches the auction"


def _undisturbed(deployment: Deployment) -> Iterator[Decision]:
    cells: dict[str, Cell] = {}
    for record in deployment.records("ledger"):
        event = ledger_event_of(record)
        name = event.envelope.event.cell
        yield from cells.setdefault(name, Cell(name)).handle(event)


def _start(deployment: Deployment) -> Worker:
    return deployment.start_worker(worker_name="w1", snapshot_every_events=20, validate=1)
