"""How the processes of a job on a node are started, heard and ended. Only the time is told to them."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from executors.gang.job_processes import JobProcesses
from executors.gang.membership import Membership
from executors.gang.messages import Ended, Failed
from executors.gang.node import GangNode
from executors.gang.settings import JobSettings
from executors.processes.forked_process import ForkedProcess
from tests.support import small_processes
from tests.support.fork_server import start_fork_server
from tests.support.small_processes import STATUS, WORDS, Word

_WAIT_S = 60.0


class Clock:
    now_s = 1_000.0

    def time_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(clock: Clock, tmp_path: Path) -> GangNode[JobSettings]:
    return GangNode(
        called="worker",
        cell="c",
        node="n1",
        state_root=tmp_path,
        output_root=tmp_path,
        settings=JobSettings(release_grace_s=30.0),
        clock=clock,
        report=lambda report: None,
        gpus=2,
        free_gpus=[0, 1],
    )


Begin = Callable[..., JobProcesses[Word]]


@pytest.fixture
def begin(place: GangNode[JobSettings]) -> Iterator[Begin]:
    """Has the processes of a job, each of which does one of the small works."""
    start_fork_server()
    begun: list[JobProcesses[Word]] = []

    def begin(*works: Callable[..., None]) -> JobProcesses[Word]:
        def start(rank: int, gpu: int) -> ForkedProcess[Word]:
            order = Membership(generation=1, rank=rank, world=len(works))
            return ForkedProcess(f"{small_processes.__name__}:{works[rank].__name__}", order, WORDS, "small")

        begun.append(JobProcesses(place, range(len(works)), start))
        begun[-1].tend()
        return begun[-1]

    yield begin
    for processes in begun:
        processes.kill("discard")


def heard(processes: JobProcesses[Word], count: int) -> Sequence[tuple[int, Word]]:
    """So many words, waited for, with the ranks of those who said them."""
    deadline_s, words = time.monotonic() + _WAIT_S, []
    while len(words) < count:
        assert time.monotonic() < deadline_s, f"only {words}"
        words += [(process.rank, word) for process, word in processes.hear()]
        time.sleep(0.005)
    return words


def test_a_last_word_is_heard_once_its_process_is_gone_and_its_gpu_free(
    begin: Begin, place: GangNode[JobSettings]
) -> None:
    processes = begin(small_processes.finish)
    assert place.free_gpus == [1]
    (_, first), (_, last) = heard(processes, 2)
    assert isinstance(first, Membership)
    assert isinstance(last, Ended)
    assert place.free_gpus == [0, 1]
    assert processes.are_gone
    assert processes.failure is None


def test_one_that_ends_without_a_word_has_failed(begin: Begin) -> None:
    ((_, word),) = heard(begin(small_processes.die), 1)
    why = f"a worker process has ended with status {STATUS} and no word"
    assert word == Failed(error=why, permanent=False)


def test_ranks_wait_for_gpus(begin: Begin, place: GangNode[JobSettings]) -> None:
    processes = begin(small_processes.hang, small_processes.finish, small_processes.finish)
    assert (len(processes.running), processes.vacant, place.free_gpus) == (2, [2], [])
    heard(processes, 3)
    processes.tend()
    assert (len(processes.running), processes.vacant, place.free_gpus) == (2, [], [])
    assert processes.running[-1].gpu == 1


def test_a_release_ends_one_at_once_that_nobody_counts_on(begin: Begin) -> None:
    processes = begin(small_processes.load)
    heard(processes, 1)
    processes.release("stop", by_s=None)
    ((_, word),) = heard(processes, 1)
    assert word == Ended(reason="left", samples_done=0, node_s=0.0)


@pytest.mark.parametrize(("by_s", "kill_s"), [(1_010.0, 1_009.5), (None, 1_029.5)], ids=["told", "usual"])
def test_what_has_not_gone_in_time_is_killed(
    begin: Begin, clock: Clock, by_s: float | None, kill_s: float
) -> None:
    processes = begin(small_processes.hang)
    heard(processes, 1)
    processes.release("stop", by_s)
    clock.now_s = kill_s - 0.01
    processes.tend()
    assert processes.running[0].process.is_alive
    clock.now_s = kill_s
    processes.tend()
    ((_, word),) = heard(processes, 1)
    assert isinstance(word, Failed)
    assert "signal 9" in word.error
    assert processes.failure is None  # it was to end anyway


def test_the_first_failure_gives_the_others_a_time_and_a_fault_of_the_job_itself_is_told(
    begin: Begin, clock: Clock
) -> None:
    processes = begin(small_processes.fail, small_processes.hang)
    ((_, lost),) = (entry for entry in heard(processes, 2) if isinstance(entry[1], Failed))
    assert isinstance(lost, Failed)
    processes.fail(lost)
    clock.now_s += 15.0
    processes.tend()
    ((rank, killed),) = heard(processes, 1)
    assert isinstance(killed, Failed)
    processes.fail(killed)
    assert (rank, processes.are_gone, processes.failure) == (1, True, killed)
    fault = Failed(error="bad data", permanent=True)
    processes.fail(fault)
    assert processes.failure == fault
