"""Members of gangs that end before others, and nodes with processes of two generations."""

from typing import Literal

import pytest

from schemas.fleet import RunFinished, RunProgressed, RunReport
from schemas.kind import Workload
from streams.cell.jobs import Job
from streams.policies.policy import ZoneContext
from tests.streams.gang.policies import COMPLETE, CountedGang, Plain, PlainGangs
from tests.support.elastic import ElasticTerms
from tests.support.twins import ZONE


class EndlessWork(Workload):
    """Work that only time ends."""

    kind: Literal["endless"] = "endless"


class CountingGangs(PlainGangs):
    """Gangs that count the releases of nodes."""

    def __init__(self, context: ZoneContext) -> None:
        super().__init__(context)
        self.released: list[str] = []

    def _release_node(self, job: CountedGang, node: str) -> None:
        self.released.append(node)


class Counting(Plain):
    """A policy that counts the releases of nodes."""

    def gangs_of(self, context: ZoneContext) -> CountingGangs:
        return CountingGangs(context)


@pytest.fixture
def gangs() -> CountingGangs:
    """Return the gangs of a zone without jobs."""
    counting: CountingGangs = Counting().gangs
    return counting


def add(gangs: CountingGangs, generation: int, *nodes: str) -> CountedGang:
    """Add a job with a process on each of some nodes."""
    job = CountedGang(Job("k", "u", ZONE, EndlessWork(), ElasticTerms()), 0)
    job.generation, job.members, job.leader = generation, dict.fromkeys(nodes, 1), nodes[0]
    gangs.add(job)
    return job


def report(kind: type[RunReport], node: str, generation: int = 1) -> RunReport:
    fields = COMPLETE if kind is RunProgressed else {}
    return kind(cell="c", node=node, run_id=f"{generation}/k", job_id="k", samples_done=8, **fields)


def test_endless_work_is_done_on_a_member(gangs: CountingGangs) -> None:
    job = add(gangs, 1, "a", "b")
    gangs.report(job, report(RunProgressed, "b"))
    assert (list(job.members), list(job.done)) == (["a", "b"], ["b"])
    gangs.report(job, report(RunFinished, "a"))
    assert gangs.jobs == {}


def test_node_is_released_after_its_last_generation(gangs: CountingGangs) -> None:
    job = add(gangs, 2, "a")
    gangs.leave(job, {"a": 1, "b": 1}, 1)
    gangs.report(job, report(RunProgressed, "a", 1))
    assert gangs.released == [], "its processes of the newest generation go on"
    gangs.report(job, report(RunProgressed, "b", 1))
    assert gangs.released == ["b"]
    gangs.report(job, report(RunFinished, "a", 2))
    assert gangs.released == ["b", "a"]


def test_done_member_has_ended_older_processes(gangs: CountingGangs) -> None:
    job = add(gangs, 2, "a", "b")
    gangs.leave(job, {"b": 1}, 1)
    gangs.report(job, report(RunProgressed, "b", 2))
    assert (list(job.done), job.leaving) == (["b"], {})
    gangs.report(job, report(RunFinished, "a", 2))
    assert (gangs.jobs, gangs.released) == ({}, ["b", "a"])
