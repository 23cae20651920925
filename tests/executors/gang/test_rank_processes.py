"""Ranks of a job on a node are started and ended, and their messages received."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from executors.gang.gang_node import GangNode
from executors.gang.messages import MESSAGES, Ended, Failed, Joined, Membership, RankMessage
from executors.gang.rank_processes import RankProcesses
from executors.processes.forked_process import ForkedProcess
from executors.settings import JobSettings
from tests.support import small_processes
from tests.support.fork_server import start_fork_server
from tests.support.small_processes import STATUS

_WAIT_S = 60.0


class Clock:
    now_s = 1_000.0

    def time_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(clock: Clock, tmp_path: Path) -> GangNode[JobSettings]:
    return GangNode(
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


Begin = Callable[..., RankProcesses]


@pytest.fixture
def begin(node: GangNode[JobSettings]) -> Iterator[Begin]:
    """Has the processes of a job, each of which does one of the small works."""
    start_fork_server()
    begun: list[RankProcesses] = []

    def begin(*works: Callable[..., None]) -> RankProcesses:
        def start(rank: int, gpu: int) -> ForkedProcess[RankMessage]:
            order = Membership(generation=1, rank=rank, world=len(works))
            return ForkedProcess(
                f"{small_processes.__name__}:{works[rank].__name__}", order, MESSAGES, "small"
            )

        begun.append(RankProcesses(node, range(len(works)), start))
        begun[-1].reconcile()
        return begun[-1]

    yield begin
    for processes in begun:
        processes.kill("discard")


def received(processes: RankProcesses, count: int) -> Sequence[tuple[int, RankMessage]]:
    """Wait for so many messages, and return them with the ranks of their senders."""
    deadline_s, messages = time.monotonic() + _WAIT_S, []
    while len(messages) < count:
        assert time.monotonic() < deadline_s, f"only {messages}"
        messages += [(process.rank, message) for process, message in processes.receive()]
        time.sleep(0.005)
    return messages


def test_final_message_follows_end_and_free_gpu(begin: Begin, node: GangNode[JobSettings]) -> None:
    processes = begin(small_processes.finish)
    assert node.free_gpus == [1]
    (_, first), (_, last) = received(processes, 2)
    assert isinstance(first, Joined)
    assert isinstance(last, Ended)
    assert node.free_gpus == [0, 1]
    assert processes.are_gone
    assert processes.failure is None


def test_end_without_final_message_is_failure(begin: Begin) -> None:
    ((_, message),) = received(begin(small_processes.die), 1)
    why = f"a rank process has ended with status {STATUS} and no final message"
    assert message == Failed(error=why, permanent=False)


def test_ranks_wait_for_gpus(begin: Begin, node: GangNode[JobSettings]) -> None:
    processes = begin(small_processes.hang, small_processes.finish, small_processes.finish)
    assert (len(processes.running), processes.vacant, node.free_gpus) == (2, [2], [])
    received(processes, 3)
    processes.reconcile()
    assert (len(processes.running), processes.vacant, node.free_gpus) == (2, [], [])
    assert processes.running[-1].gpu == 1


def test_unneeded_rank_ends_at_once_on_release(begin: Begin) -> None:
    processes = begin(small_processes.load)
    received(processes, 1)
    processes.release("stop", by_s=None)
    ((_, message),) = received(processes, 1)
    assert message == Ended(reason="left", samples_done=0, node_s=0.0)


@pytest.mark.parametrize(("by_s", "kill_s"), [(1_010.0, 1_009.5), (None, 1_029.5)], ids=["told", "usual"])
def test_what_has_not_gone_in_time_is_killed(
    begin: Begin, clock: Clock, by_s: float | None, kill_s: float
) -> None:
    processes = begin(small_processes.hang)
    received(processes, 1)
    processes.release("stop", by_s)
    clock.now_s = kill_s - 0.01
    processes.reconcile()
    assert processes.running[0].process.is_alive
    clock.now_s = kill_s
    processes.reconcile()
    ((_, message),) = received(processes, 1)
    assert isinstance(message, Failed)
    assert "signal 9" in message.error
    assert processes.failure is None  # it was to end anyway


def test_first_failure_limits_time_of_others(begin: Begin, clock: Clock) -> None:
    processes = begin(small_processes.fail, small_processes.hang)
    ((_, lost),) = (entry for entry in received(processes, 2) if isinstance(entry[1], Failed))
    assert isinstance(lost, Failed)
    processes.fail(lost)
    clock.now_s += 15.0
    processes.reconcile()
    ((rank, killed),) = received(processes, 1)
    assert isinstance(killed, Failed)
    processes.fail(killed)
    assert (rank, processes.are_gone, processes.failure) == (1, True, killed)
    fault = Failed(error="bad data", permanent=True)
    processes.fail(fault)
    assert processes.failure == fault
