"""Ledgers recorded before a change of their policy, folded through the present cell.

`merging-before-gangs` is of commit 7c26c45e^, before jobs of merging zones became gangs. Runs had other ids
then, so the table has the ids of the runs that each line begins: the n-th run that begins is the n-th run
now. A generation was that of a task, and now it is that of a job, so generations are not compared.
Of 30 random histories of that commit with 100 steps each (59,955 events, seeds 0 to 29), 29 have the same
decisions at commit c057195b. In one, a pair began on a node that had restarted, and ended in that moment.

`elastic-separate-queues` is of commit 2aa7c00a^. Under the scheme `opportunistic`, fungible jobs were in the
queue for loaned servers alone.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.codec import decode_event_line
from schemas.merging.commands import ProfileOrdered, TaskAssigned
from solvers.elastic.demand import Allocation, JobDemand, Pool, WorkerGrant
from solvers.elastic.heuristics import Opportunistic
from streams.cell.state_machine import Cell, LedgerEvent
from tests.streams.outcomes.gangs import FOLDER, gang_table, outcome_lines
from tests.streams.outcomes.table import path

RENAMED = {"millrace.profile.reported.v1": "millrace.task.profiled.v1"}
"""Present types of events that had other ones."""
_GENERATION = re.compile(r" (starts|leaves \S+) \d+ ")


class Recorded(NamedTuple):
    """Decisions about an event, as they were recorded."""

    lines: list[str]
    runs: list[str]
    """Ids of the runs that begin."""


class Difference(NamedTuple):
    """An event about which other decisions are made now."""

    offset: int
    then: list[str]
    now: list[str]


def recorded() -> Mapping[tuple[int, int], Recorded]:
    """Return the recorded decisions by number of the ledger and offset of the event."""
    decisions: dict[tuple[int, int], Recorded] = defaultdict(lambda: Recorded([], []))
    for text in path("merging-before-gangs").read_text().splitlines():
        ledger, offset, rest = text.split(" ", 2)
        line, _, runs = rest.partition(" runs ")
        decisions[int(ledger), int(offset)].lines.append(line)
        decisions[int(ledger), int(offset)].runs.extend(runs.split())
    return decisions


def recorded_ledgers() -> list[list[dict[str, Any]]]:
    """Return the events of the recorded ledgers, each of which begins with the configuration of its cell."""
    found: list[list[dict[str, Any]]] = []
    with gzip.open(FOLDER / "merging-before-gangs.jsonl.gz") as lines:
        for event in map(json.loads, lines):
            if event["type"] == CellConfigured.TYPE:
                found.append([])
            found[-1].append(event)
    return found


def begun(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the ids of the runs that begin, in their order; all nodes of a task get the same."""
    runs: dict[str, None] = {}
    for outcome in outcomes:
        match outcome:
            case ProfileOrdered():
                runs[outcome.order.run_id] = None
            case TaskAssigned():
                runs |= dict.fromkeys(order.run_id for order in outcome.orders)
    return list(runs)


def comparable(lines: Iterable[str]) -> list[str]:
    return [_GENERATION.sub(r" \1 ", line) for line in lines]


def first_difference(number: int) -> Difference | None:
    """Return the first event of a ledger with other decisions; None without one. Later ones are not compared,
    since nodes reported the runs that they were ordered then."""
    cell, decided = Cell("c"), recorded()
    run_ids: dict[str, str] = {}
    for offset, event in enumerate(recorded_ledgers()[number]):
        event["type"] = RENAMED.get(event["type"], event["type"])
        if "run_id" in event["data"]:
            event["data"]["run_id"] = run_ids[event["data"]["run_id"]]
        decisions = cell.handle(LedgerEvent(offset, decode_event_line(json.dumps(event))))
        lines = [f"{one.time_s} {line}" for one in decisions for line in outcome_lines(one.outcome)]
        then = decided[number, offset]
        if comparable(lines) != comparable(then.lines):
            return Difference(offset, comparable(then.lines), comparable(lines))
        run_ids |= zip(then.runs, begun(one.outcome for one in decisions), strict=True)
    return None


@pytest.mark.parametrize("number", [1, 2])
def test_merging_zones_decide_as_before_gangs(number: int) -> None:
    assert first_difference(number) is None


def test_only_pending_task_outlives_silent_run() -> None:
    """A task began when its earlier run was given up for silence, and was given up in the same moment."""
    assert first_difference(0) == Difference(
        offset=1254,
        then=["5580.0 j13@0 starts normal n0x1", "5580.0 j13 leaves n0 reallocated"],
        now=["5580.0 j13@0 starts normal n0x1"],
    )


def separate_queues(
    _scheme: Opportunistic,
    waiting: Sequence[JobDemand],
    running: Sequence[JobDemand],
    free_gpus: Mapping[Pool, float],
    trial: int = 0,
) -> list[WorkerGrant]:
    """Allocate as the scheme did before: a fungible job waits for loaned servers alone."""
    allocation = Allocation(running, free_gpus)
    blocked: set[Pool] = set()
    for job in waiting:
        pool: Pool = "loaned" if "loaned" in job.pools else "training"
        if pool in blocked:
            continue
        if pool in job.open_pools and allocation.idle_gpus(pool) >= job.min_workers * job.gpus_per_worker:
            allocation.start(job, pool)
        else:
            blocked.add(pool)
    return allocation.grants()


def test_only_rule_of_opportunistic_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    then = path("elastic-separate-queues").read_text().splitlines()
    assert gang_table("elastic-separate-queues").splitlines() != then
    monkeypatch.setattr(Opportunistic, "allocate", separate_queues)
    assert gang_table("elastic-separate-queues").splitlines() == then
