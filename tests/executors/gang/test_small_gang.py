"""The life of a gang on two nodes, with a job that trains next to nothing."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from executors.settings import JobSettings
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from tests.small_gang.kind import LineAssigned, LineReleased, LineWorkload
from tests.small_gang.runner import LineRunner
from tests.small_gang.training import LINE
from tests.support.fork_server import start_fork_server
from tests.support.nodes import Members, Nodes, is_end

BOTH = [("n1", 1), ("n2", 1)]
SHORT = LineWorkload(work_samples=400)
LONG = LineWorkload(work_samples=8 * 10**6, step_s=0.002)


class ScalingRunner(LineRunner):
    """Has the present ranks continue in a newer generation."""

    def is_continued(self, command: LineAssigned) -> bool:
        return True


@dataclass
class Fleet(Nodes[LineRunner, JobSettings]):
    EXECUTOR: ClassVar = {"runners": ("line",)}

    def assign(self, members: Members, work: LineWorkload, generation: int = 1, **fields: object) -> None:
        for name, _ in members:
            command = LineAssigned(
                zone="z",
                node=name,
                run_id=f"{generation}/j",
                job_id="j",
                user="u",
                generation=generation,
                members=tuple(members),
                workload=work,
                **fields,
            )
            self.send(command)

    def release(self, reason: str, generation: int = 1, names: Sequence[str] = ("n1", "n2")) -> None:
        for name in names:
            self.send(LineReleased(zone="z", node=name, job_id="j", generation=generation, reason=reason))

    def has_started(self, generation: int, *names: str) -> Callable[[], bool]:
        return lambda: (
            {each.node for each in self.reports(RunStarted) if each.run_id == f"{generation}/j"} >= set(names)
        )

    def is_over(self, generation: int, *names: str) -> Callable[[], bool]:
        return lambda: (
            {
                each.node
                for each in self.reports(RunReport)
                if each.run_id == f"{generation}/j" and is_end(each)
            }
            >= set(names)
        )

    def pids(self, name: str) -> list[int]:
        return [pid for each in self.nodes[name].runner.assignments for pid in each.processes.pids]

    def has_saved(self, samples: int) -> Callable[[], bool]:
        return lambda: any(each.samples_done >= samples for each in self.reports(RunProgressed))

    @property
    def weights(self) -> list[float]:
        return json.loads((self.result("j") / LINE).read_text())


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    start_fork_server()
    settings = JobSettings(
        checkpoint_s=0.05, checkpoint_wait_s=0.5, progress_s=0.05, join_timeout_s=30.0, stop_grace_s=10.0
    )
    fleet = Fleet(tmp_path, settings)
    for name in ("n1", "n2"):
        fleet.begin(name, LineRunner, 2)
    yield fleet
    fleet.close()


def test_two_nodes_train_and_publish_once(fleet: Fleet) -> None:
    fleet.assign(BOTH, SHORT)
    fleet.until(fleet.is_over(1, "n1", "n2"))
    (finished,) = fleet.reports(RunFinished)
    assert (finished.node, finished.samples_done) == ("n1", SHORT.work_samples)
    assert fleet.checkpoints("j") == ["final"]
    two = fleet.weights
    fleet.release("withdrawn")
    fleet.assign([("n2", 1)], SHORT, generation=2)
    fleet.until(fleet.is_over(2, "n2"))
    assert fleet.weights == pytest.approx(two, abs=1e-5)


@pytest.mark.parametrize("lost", ["n1", "n2"])
def test_next_generation_resumes_after_killed_rank(fleet: Fleet, lost: str) -> None:
    fleet.assign(BOTH, LONG)
    fleet.until(fleet.has_saved(16))
    os.kill(fleet.pids(lost)[0], signal.SIGKILL)
    fleet.until(fleet.is_over(1, "n1", "n2"))
    assert {each.permanent for each in fleet.reports(RunFailed)} == {False}
    done = max(each.samples_done for each in fleet.reports(RunFailed))
    assert f"1-{done}" in fleet.checkpoints("j")
    fleet.assign([("n2", 2)], LONG, generation=2, resume_samples=done)
    fleet.until(fleet.has_started(2, "n2"))
    assert [each.samples_done for each in fleet.reports(RunStarted) if each.run_id == "2/j"] == [done]


def test_ranks_stop_at_same_step_with_checkpoint(fleet: Fleet) -> None:
    fleet.assign(BOTH, LONG)
    fleet.until(fleet.has_started(1, "n1", "n2"))
    fleet.release("preempted", names=["n2"])
    fleet.until(fleet.is_over(1, "n1", "n2"))
    ends = {each.samples_done for each in fleet.reports(RunProgressed) if each.complete}
    assert len(ends) == 1
    assert f"1-{ends.pop()}" in fleet.checkpoints("j")


def test_joining_rank_gets_training_state(fleet: Fleet) -> None:
    fleet.begin("n1", ScalingRunner, 2)
    fleet.begin("n2", ScalingRunner, 2)
    fleet.assign([("n1", 1)], LONG)
    fleet.until(fleet.has_saved(16))
    (pid,) = fleet.pids("n1")
    fleet.assign(BOTH, LONG, generation=2)
    fleet.until(fleet.has_started(2, "n1", "n2"))
    assert fleet.pids("n1") == [pid]
    assert min(each.samples_done for each in fleet.reports(RunStarted) if each.run_id == "2/j") >= 16


def test_nothing_is_kept_of_a_withdrawn_job(fleet: Fleet) -> None:
    fleet.assign(BOTH, LONG)
    fleet.until(lambda: fleet.checkpoints("j"))
    fleet.release("withdrawn")
    fleet.until(fleet.is_over(1, "n1", "n2"))
    assert fleet.checkpoints("j") == []
    assert not fleet.reports(RunFailed)
    assert list((fleet.root / "state" / "c" / "meetings").glob("*")) == []


def test_a_finished_job_is_reported_again(fleet: Fleet) -> None:
    fleet.assign(BOTH, SHORT)
    fleet.until(fleet.is_over(1, "n1", "n2"))
    fleet.assign([("n2", 1)], SHORT, generation=2)
    fleet.until(fleet.is_over(2, "n2"))
    first, again = fleet.reports(RunFinished)
    assert (again.run_id, again.samples_done, again.loss) == ("2/j", first.samples_done, first.loss)


def test_the_state_of_another_workload_is_refused(fleet: Fleet) -> None:
    fleet.assign(BOTH, LONG)
    fleet.until(lambda: fleet.checkpoints("j"))
    fleet.release("preempted")
    fleet.until(fleet.is_over(1, "n1", "n2"))
    fleet.assign([("n1", 1)], LineWorkload(work_samples=16), generation=2)
    fleet.until(fleet.is_over(2, "n1"))
    (failure,) = fleet.reports(RunFailed)
    assert failure.permanent
    assert failure.error.endswith("is of another workload")
