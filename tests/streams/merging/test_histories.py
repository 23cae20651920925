"""Random histories of a merging zone: whatever happens, what must hold holds, and every job ends.

After every event the zone's invariants are checked, what it is counted for, and that a cell that was restored
from a snapshot decides the same.
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import NodeCordoned, NodeRegistered, NodeRetired, NodeUncordoned, ZoneConfigured
from schemas.commands import Command
from schemas.decisions import JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.fleet import NodeOnline, NodeSilent, RunFailed, RunFinished
from schemas.merging.commands import TaskAssigned, TaskReleased
from schemas.merging.outcomes import MergeEvaluated
from schemas.merging.settings import SchemeName
from schemas.solves import SolveFinished, SolveRequested
from tests.support.examples import LONG, examples
from tests.support.merging import (
    CELL,
    GPUS,
    MODEL,
    World,
    answer,
    merging_cell,
    merging_zone,
    submit,
    withdraw,
)
from tests.support.merging_script import ending_runs
from tests.support.twins import ZONE

STEPS = 40
KNOWN = (3, 16, *((0, 1, 8, 13, 14, 18, 21, 31, 32, 43) if LONG else ()))
"""Seeds of histories, most of them with merges."""
USERS = ("ann", "ben", "cid")
ENDS = (JobCompleted, JobRefunded, JobRejected, JobWithdrawn)
SCHEMES: tuple[SchemeName, ...] = ("ymir", "ymir", "ymir", "srtf", "tiresias", "optimus", "themis")


class History:
    """One history, and what it takes to go on with it."""

    def __init__(self, rng: random.Random, **policy: Any) -> None:
        self.rng = rng
        self.policy = {
            "scheme": rng.choice(SCHEMES),
            "idle_interval_s": rng.choice([None, 5.0]),
            "watched_epochs": rng.choice([1, 2]),
            "profile_iterations": 10,
            "modes": rng.choice([("temporal",), ("spatial",), ("temporal", "spatial")]),
            "merges": "expected",  # so few jobs show no merge to pay
            **policy,
        }
        self.gpus = rng.choice([1, 2, GPUS])
        """GPUs of each node."""
        self.world = World(
            merging_cell(3, self.gpus, **self.policy), answers=self._answers, crossing=self._done_sooner
        )
        self.jobs = 0
        self.registered = 0
        self.down: set[str] = set()
        self.assigned: list[TaskAssigned] = []
        self.ended: list[str] = []
        self.undone: Counter[str] = Counter()
        """By job, merges of it that were undone."""
        self.run(0.0)

    def _answers(self, asked: SolveRequested) -> tuple[float, SolveFinished] | None:
        match self.rng.choice(["soon", "soon", "soon", "late", "nothing", "never"]):
            case "soon":
                return 0.1, answer(asked)
            case "late":
                return self.rng.uniform(1, 300), answer(asked)
            case "nothing":
                return 0.1, answer(asked).model_copy(update={"solution": None})
        return None

    def _done_sooner(self, command: Command) -> Iterator[RunFinished]:
        """Runs may be done before their nodes receive the order to end them."""
        if not isinstance(command, TaskReleased) or self.rng.random() > 0.5:
            return
        jobs = [job for job in self.world.bench.jobs if job["job_id"] in command.job_ids]
        for job in sorted(jobs, key=lambda job: command.job_ids.index(job["job_id"])):
            for run_id, leader in ending_runs(job).items():
                if leader == command.node:
                    yield RunFinished(
                        cell=CELL,
                        node=leader,
                        run_id=run_id,
                        job_id=job["job_id"],
                        samples_done=job["total_samples"],
                        adapter_path=f"{job['job_id']}/adapter",
                        adapter_digest="0" * 64,
                    )

    @property
    def nodes(self) -> list[str]:
        return list(self.world.bench.cell.nodes.layout.zone_of)

    def send(self, *events: object) -> None:
        self._note(self.world.send(*events))  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        self._note(self.world.run(seconds))

    def _note(self, outcomes: list[object]) -> None:
        self.assigned += [outcome for outcome in outcomes if isinstance(outcome, TaskAssigned)]
        self.ended += [outcome.job_id for outcome in outcomes if isinstance(outcome, ENDS)]
        evaluated = (outcome for outcome in outcomes if isinstance(outcome, MergeEvaluated))
        self.undone.update(one.job_id for one in evaluated if one.reason == "undone")

    def step(self) -> None:
        rng = self.rng
        match rng.choice(["job"] * 4 + ["time"] * 5 + ["withdraw", "node", "node", "fail", "zone", "forge"]):
            case "job":
                self.submit()
            case "time":
                self.run(rng.choice([1.0, 7.0, 40.0, 200.0, 1_000.0]))
            case "withdraw":
                live = list(self.world.bench.cell.jobs.live.values())
                if live:
                    job = rng.choice(live)
                    self.send(withdraw(job.job_id, job.user))
            case "node":
                self.trouble()
            case "fail":
                if self.assigned:
                    command = rng.choice(self.assigned[-5:])
                    order = rng.choice(command.orders)
                    self.send(
                        RunFailed(
                            cell=CELL,
                            node=command.node,
                            run_id=order.run_id,
                            job_id=order.job_id,
                            samples_done=0,
                            error="out of memory",
                            permanent=rng.random() < 0.3,
                        )
                    )
            case "zone":
                self.policy["interval_s"] = rng.choice([60.0, 120.0])
                nodes = self.world.bench.cell.configuration.zones[0].nodes
                changed = merging_zone(3, self.gpus, **self.policy).model_copy(update={"nodes": nodes})
                self.send(ZoneConfigured(cell=CELL, zone=changed))
            case "forge":
                self.forge()

    def submit(self) -> None:
        rng = self.rng
        self.jobs += 1
        samples = rng.choice([80, 800, 4_000])
        self.send(
            submit(
                f"j{self.jobs}",
                rng.choice(USERS),
                rng.choice("abcde"),
                samples=samples,
                epochs=rng.choice([1, 4, 10]),
                sharing=rng.random() < 0.9,
                pipeline=self.gpus == GPUS and rng.random() < 0.1,
                gpus=rng.choice([1, 2, 4]),
                accuracy=rng.choice([0.5, 0.8, None]),
            )
        )

    def trouble(self) -> None:
        rng, node = self.rng, self.rng.choice(self.nodes)
        match rng.choice(["lose", "return", "restart", "cordon", "uncordon", "register", "retire"]):
            case "lose" if len(self.down) < 2:
                self.down.add(node)
                self.world.silent.add(node)
                self.send(NodeSilent(cell=CELL, node=node, silent_s=60.0))
            case "return" if self.down:
                self.bring_back(rng.choice(sorted(self.down)))
            case "restart" if node not in self.down:
                self.send(self._online(node))
            case "cordon":
                self.send(NodeCordoned(cell=CELL, node=node))
            case "uncordon":
                self.send(NodeUncordoned(cell=CELL, node=node))
            case "register":
                self.registered += 1
                added = f"x{self.registered}"
                self.send(
                    NodeRegistered(cell=CELL, zone=ZONE, node=added, gpu_type="V100", tariff="flat"),
                    self._online(added),
                )
            case "retire":
                self.send(NodeRetired(cell=CELL, node=node))

    def forge(self) -> None:
        """A report that comes again, or from elsewhere."""
        reports = [entry.envelope.event for entry in self.world.bench.ledger[-60:]]
        reports = [event for event in reports if hasattr(event, "run_id")]
        if reports:
            report = self.rng.choice(reports)
            node = self.rng.choice([report.node, *self.nodes])
            self.send(report.model_copy(update={"node": node}))

    def bring_back(self, node: str) -> None:
        self.down.discard(node)
        self.world.silent.discard(node)
        if node in self.nodes:
            self.send(self._online(node))

    @staticmethod
    def _online(node: str) -> NodeOnline:
        return NodeOnline(cell=CELL, node=node, base_model=MODEL, runners=("tuner",))

    def settle(self) -> None:
        """Whatever was wrong is over, and time passes until all jobs are."""
        for node in sorted(self.down):
            self.bring_back(node)
        for node in self.nodes:
            self.send(NodeUncordoned(cell=CELL, node=node))
        self._note(self.world.run_until_idle())


def check(seed: int, **policy: Any) -> History:
    history = History(random.Random(seed), **policy)
    for _ in range(STEPS):
        history.step()
    history.settle()
    check_end(history)
    check_commands(history)
    return history


def check_end(history: History) -> None:
    """Nothing is left of the jobs."""
    assert sorted(history.ended) == sorted(f"j{number + 1}" for number in range(history.jobs))
    assert not any(node["held"] for node in history.world.bench.described["nodes"].values())
    assert not history.world.bench.cell.live_jobs_bytes
    assert max(history.undone.values(), default=0) <= 1, "no job is in a second merge that fails"


def check_commands(history: History) -> None:
    """Assert that jobs that do not share are alone, rivals merge no job, and no receiver of a temporal merge
    has begun."""
    generations: dict[str, tuple[int, str]] = {}
    for command in history.assigned:
        orders, merged = command.orders, len(command.orders) == 2
        assert not merged or all(order.workload.sharing for order in orders)
        assert not merged or history.policy["scheme"] == "ymir"
        assert not merged or orders[1].resume_iterations == 0 or command.mode == "spatial"
        for order in orders:
            last, task_id = generations.get(order.job_id, (0, ""))
            is_same = (command.generation, command.task_id) == (last, task_id)  # of another node
            assert is_same or command.generation > last, "the fencing token of its checkpoints"
            generations[order.job_id] = command.generation, command.task_id


def test_jobs_of_histories_end_with_all_modes() -> None:
    histories = [check(seed) for seed in KNOWN]
    modes = {command.mode for history in histories for command in history.assigned}
    assert modes == {"normal", "temporal", "spatial"}


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 2**32), st.sampled_from(["shown", "expected"]))
def test_every_job_of_any_history_ends(seed: int, merges: str) -> None:
    check(seed, merges=merges)
