"""A node reports commands that it does not carry out, and carries out each command or order once."""

from pathlib import Path
from typing import Any

import pytest

from executors.node import commands
from schemas.codec import Decision, DecisionEnvelope, decode_decision_record
from schemas.commands import NodeCommand, RunDisowned
from schemas.experts.commands import ExpertsPlaced, LayerPlacement, RankMember, RanksAssigned, RanksReleased
from schemas.experts.workload import MoeTrainWorkload
from schemas.fleet import CommandRefused, NodeOnline, RefusedRun, RunProgressed, RunReport
from schemas.lora import Dataset
from schemas.merging.reports import TaskProfiled
from tests.support import elastic_nodes, executors, tuner_nodes
from tests.support.disturbed.nodes import ModelNode, VirtualTime
from tests.support.disturbed.runners import ElasticRunners, LoraRunners, MoeRunners, TunerRunners
from tests.support.nodes import is_end, short

CHAIN = "0" * 64
N1 = [("n1", 1)]
PLACED = (LayerPlacement(layer=0, devices=((0,), (1,))),)


class Bench:
    """A node and its reports."""

    def __init__(self, runners: Any, root: Path) -> None:
        self.clock = VirtualTime(1_000_000.0)
        self.runners = runners
        self.reports: list[Any] = []
        self.node = ModelNode("n1", root, self.clock, runners, lambda _id, event: self.reports.append(event))
        self._commands = 0
        runners.advance(self.clock.now_s)
        self.node.start()

    def send(self, *commands: NodeCommand, again: bool = False, full: bool = False) -> None:
        """Commands come, each in a record of its own; `again`: those that came last come once more; `full`:
        the node waits for room."""
        self._commands += 0 if again else len(commands)
        first = self._commands - len(commands)
        for number, command in enumerate(commands, first):
            self.node.values.append(Decision(f"c-{number}-0", "c", "e", 0.0, command, CHAIN).canonical)
        if full:
            self.node.wait_for_room()
        else:
            self.node.turn()

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now_s += 1.0
            self.node.turn()
            self.runners.advance(self.clock.now_s)

    @property
    def refused(self) -> list[tuple[str, list[str]]]:
        refusals = [each for each in self.reports if isinstance(each, CommandRefused)]
        return [(each.reason, [run.run_id for run in each.runs]) for each in refusals]

    def ends(self) -> list[str]:
        return [each.run_id for each in self.reports if isinstance(each, RunReport) and is_end(each)]


@pytest.fixture
def elastic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(ElasticRunners(monkeypatch, 2), tmp_path)


@pytest.fixture
def moe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(MoeRunners(monkeypatch, 2), tmp_path)


@pytest.fixture
def tuner(tmp_path: Path) -> Bench:
    return Bench(TunerRunners(2), tmp_path)


@pytest.fixture
def lora(tmp_path: Path) -> Bench:
    return Bench(LoraRunners(), tmp_path)


def workers(generation: int) -> Any:
    return elastic_nodes.assigned("n1", "j0", generation, N1, elastic_nodes.workload())


def ranks(generation: int) -> RanksAssigned:
    return RanksAssigned(
        zone="z",
        node="n1",
        run_id=f"{generation}/j0",
        job_id="j0",
        user="u",
        generation=generation,
        members=(RankMember(node="n1", ranks=1),),
        resume_samples=0,
        report_interval_s=10.0,
        workload=MoeTrainWorkload(
            work_samples=1_000, model="tiny", dataset=Dataset(path="data.jsonl", samples=100), ranks=1
        ),
    )


def task(generation: int) -> Any:
    return tuner_nodes.assigned("n1", tuner_nodes.order("j0", None, generation), generation=generation)


def profile(run_id: str) -> Any:
    order = tuner_nodes.order("j0").model_copy(update={"run_id": run_id})
    return tuner_nodes.profile_of("n1", order)


class TestReports:
    def test_workers_of_an_older_generation(self, elastic: Bench) -> None:
        elastic.send(workers(2), workers(1))
        assert elastic.refused == [("out_of_date", [workers(1).run_id])]

    def test_a_release_of_workers_that_are_not_here(self, elastic: Bench) -> None:
        command = elastic_nodes.released("n1", "j0", 1, "preempted", None)
        elastic.send(command.model_copy(update={"run_id": "1/j0"}))
        assert elastic.refused == [("unknown_run", ["1/j0"])]

    def test_ranks_of_an_older_generation(self, moe: Bench) -> None:
        moe.send(ranks(2), ranks(1))
        assert moe.refused == [("out_of_date", ["1/j0"])]

    def test_unknown_ranks_are_not_released_or_placed(self, moe: Bench) -> None:
        place = {"zone": "z", "node": "n1", "job_id": "j0", "generation": 1, "run_id": "1/j0"}
        moe.send(
            ExpertsPlaced(**place, revision=1, layers=PLACED), RanksReleased(**place, reason="preempted")
        )
        assert moe.refused == [("unknown_run", ["1/j0"])] * 2

    def test_a_task_of_an_older_generation(self, tuner: Bench) -> None:
        tuner.send(task(3), task(2))
        assert tuner.refused == [("out_of_date", ["j0/2"])]

    def test_unknown_task_is_not_released(self, tuner: Bench) -> None:
        runs = (RefusedRun(run_id="j0/1", job_id="j0"),)
        tuner.send(tuner_nodes.released("n1", "j0").model_copy(update={"runs": runs}))
        assert tuner.refused == [("unknown_run", ["j0/1"])]

    def test_a_slot_that_is_over(self, lora: Bench) -> None:
        slot = executors.assignment(executors.order("j0", 8), slot=3)
        lora.send(slot)
        assert lora.refused == [("out_of_date", [slot.runs[0].run_id])]

    def test_command_for_missing_runner_is_refused(self, tuner: Bench) -> None:
        tuner.send(workers(1))
        assert tuner.refused == [("runner_missing", [workers(1).run_id])]


class TestWithoutRoom:
    @pytest.mark.parametrize("name", ["elastic", "moe", "tuner"])
    def test_an_order_is_refused(self, request: pytest.FixtureRequest, name: str) -> None:
        bench: Bench = request.getfixturevalue(name)
        order = {"elastic": workers, "moe": ranks, "tuner": task}[name](1)
        bench.send(order, full=True)
        assert bench.refused == [("no_room", [getattr(order, "run_id", "") or bench_run(order)])]
        bench.run(3)
        assert not bench.node.occupied()

    def test_a_slot_is_refused(self, lora: Bench) -> None:
        slot = executors.assignment(executors.order("j0", 8), slot=1, start_s=lora.clock.now_s, length_s=60.0)
        lora.send(slot, full=True)
        assert lora.refused == [("no_room", [slot.runs[0].run_id])]

    def test_release_is_obeyed_and_empty_one_reported(self, elastic: Bench) -> None:
        elastic.send(workers(1))
        elastic.run(3)
        release = elastic_nodes.released("n1", "j0", 1, "preempted", None)
        elastic.send(release.model_copy(update={"run_id": workers(1).run_id}), full=True)
        elastic.run(3)
        assert elastic.ends() == [workers(1).run_id]
        assert [reason for reason, _ in elastic.refused] == ["unknown_run"], "the node had ended it before"

    def test_a_disowned_run_is_taken_back(self, elastic: Bench) -> None:
        elastic.send(RunDisowned(zone="z", node="n1", run_id="7/j0", job_id="j0"), full=True)
        assert elastic.refused == []


class TestRepeats:
    """A command that is delivered again, and one that orders what the node does already, change nothing."""

    @pytest.mark.parametrize("name", ["elastic", "moe", "tuner"])
    @pytest.mark.parametrize("again", [True, False], ids=["the same command", "the same order"])
    def test_of_an_order(self, request: pytest.FixtureRequest, name: str, again: bool) -> None:
        bench: Bench = request.getfixturevalue(name)
        order = {"elastic": workers, "moe": ranks, "tuner": task}[name](1)
        bench.send(order)
        bench.run(3)
        bench.send(order, again=again)
        bench.run(3)
        assert bench.refused == []
        assert len(bench.node.occupied()) == 2, "one process, one run"
        assert not bench.ends()

    def test_of_a_refused_one(self, elastic: Bench) -> None:
        elastic.send(workers(2))
        elastic.send(workers(1))
        elastic.send(workers(1), again=True)
        assert len(elastic.refused) == 1


class TestProfileRuns:
    def test_another_one_replaces_the_first(self, tuner: Bench) -> None:
        tuner.send(profile("p1/j0"))
        tuner.run(3)
        tuner.send(profile("p2/j0"))
        tuner.run(20)
        assert tuner.refused == []
        assert tuner.ends() == ["p1/j0", "p2/j0"]
        assert isinstance(tuner.reports[-1], TaskProfiled), short(tuner.reports[-1])

    def test_one_that_a_killed_node_continues_is_replaced(self, tuner: Bench) -> None:
        tuner.send(profile("p1/j0"))
        tuner.run(3)
        tuner.node.kill()
        tuner.node.start()
        online = [each for each in tuner.reports if isinstance(each, NodeOnline)][-1]
        assert online.runs == ("p1/j0",)
        tuner.send(profile("p2/j0"))
        tuner.run(20)
        assert tuner.ends() == ["p1/j0", "p2/j0"]


class TestDisownedRuns:
    @pytest.mark.parametrize(
        ("name", "order"),
        [("elastic", workers(1)), ("moe", ranks(1)), ("tuner", task(1)), ("tuner", profile("p1/j0"))],
        ids=["workers", "ranks", "a task", "a profile run"],
    )
    def test_end(self, request: pytest.FixtureRequest, name: str, order: Any) -> None:
        bench: Bench = request.getfixturevalue(name)
        run_id = getattr(order, "run_id", "") or bench_run(order)
        bench.send(order)
        bench.run(3)
        for other in (("7/j0", "j0"), (run_id, "j1")):
            bench.send(RunDisowned(zone="z", node="n1", run_id=other[0], job_id=other[1]))
            bench.run(2)
        assert not bench.ends(), "another run was meant"
        bench.send(RunDisowned(zone="z", node="n1", run_id=run_id, job_id="j0"))
        bench.run(3)
        assert bench.ends() == [run_id]
        assert isinstance(bench.reports[-1], RunProgressed)
        assert bench.node.occupied() == []


def bench_run(order: Any) -> str:
    return str(order.order.run_id if hasattr(order, "order") else order.orders[0].run_id)


def test_each_command_is_parsed_once(elastic: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def count(value: bytes) -> DecisionEnvelope:
        parsed.append(value)
        return decode_decision_record(value)

    monkeypatch.setattr(commands, "decode_decision_record", count)
    elastic.send(workers(1), elastic_nodes.released("n1", "j0", 1, "preempted", None), workers(2))
    elastic.send(workers(3), full=True)
    assert len(parsed) == 4
    assert len(set(parsed)) == 4
