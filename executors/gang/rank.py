"""A rank of a gang: a process that takes part in one generation of its job after another.

Between generations, a rank keeps the state of its work in memory; files are for ranks without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from transformers.utils.logging import disable_progress_bar

from executors.devices import use_device
from executors.gang.faults import final_message
from executors.gang.folder import JobFolder
from executors.gang.group import ProcessGroup
from executors.gang.inbox import Inbox
from executors.gang.meeting import Assembly, PeerLostError
from executors.gang.messages import Ended, Membership, RankOrder, Release, Report, Verdict
from executors.gang.network import use_interface
from executors.node.places import job_folder
from executors.node.run_reports import RunReports

Order = TypeVar("Order", bound=RankOrder[Any])

EndReason = Literal["left", "stopped", "finished"]


class GangRank(Generic[Order]):
    """A rank: its order, its node and its place among the others.

    Attributes:
        order: the order that the process was started with.
        inbox: the directives of its node.
        folder: messages of the job's ranks on the shared disk.
        membership: its place in the generation that it forms or works in.
        device: device of its computations, once it is set up.
        needed_bytes: size of the files that it is writing, for a disk that refuses them.
    """

    def __init__(self, order: Order, inbox: Inbox) -> None:
        self.order = order
        self.inbox = inbox
        self.folder = JobFolder(job_folder(order.state_root, order.cell, order.job_id))
        self.membership = order.membership
        self.device = torch.device("cpu")
        self.needed_bytes = 1
        self.assembly = Assembly(self.folder, order.rank_host)
        self.report = RunReports(
            order.cell, order.node, order, lambda report: inbox.send(Report.of(report))
        ).report

    @property
    def leads(self) -> bool:
        """Whether it writes and reports for all ranks."""
        return self.membership.rank == 0

    def set_up(self) -> None:
        """Set torch's device, threads and network interface by the order.

        Raises:
            OSError: the worker host is another machine.
        """
        order = self.order
        self.device = torch.device(use_device(order.device, order.gpu))
        torch.set_num_threads(order.threads)
        use_interface(order.rank_host)
        disable_progress_bar()

    @property
    def is_current(self) -> bool:
        """Return whether the node has sent no directive after that for the present generation."""
        return self.inbox.newest is self.membership


class Work(ABC, Generic[Order]):
    """The work of a job's ranks; one object in each rank.

    `participate` is called once for each generation that forms, and runs until the generation or the job is
    over.
    """

    HAS_BACKGROUND_COLLECTIVES: ClassVar[bool] = False
    """Whether other threads may run collectives when this rank fails. Closing the group would wait for them;
    it ends with the process instead."""

    def __init__(self, rank: GangRank[Order]) -> None:
        self.rank = rank

    def finished_before(self) -> Ended | None:
        """Return the final message if the job was finished before; None if it continues.

        Raises:
            ValueError: the job's record is of another job.
        """
        return None

    @property
    def has_record(self) -> bool:
        """Return whether the job was finished meanwhile, so that `finished_before` has to be called again."""
        return False

    @abstractmethod
    def prepare(self) -> None:
        """Load all that is needed to take part, with cheap checks first.

        Raises:
            ValueError: the job is invalid.
        """

    @abstractmethod
    def participate(self, group: ProcessGroup) -> Ended | None:
        """Work with the other ranks until the job is over for this rank, or the generation is over and the
        next one is to be formed: then return None.

        Raises:
            PeerLostError: another rank is lost.
            Exception: the job cannot continue, or not on this node.
        """

    @abstractmethod
    def ended(self, reason: EndReason) -> Ended:
        """Return a final message."""

    def save_alone(self) -> None:
        """Save the state, if this rank is the one to do so, after the others are lost or without a
        connection."""


def run_rank_process(
    order_type: type[Order],
    work_type: Callable[[GangRank[Order]], Work[Order]],
    order_json: str,
    connection: "Connection[bytes, bytes]",
) -> None:
    """Run a rank process from start to end. Its final message states its end."""
    order = order_type.model_validate_json(order_json)
    inbox = Inbox(connection, order.membership)
    rank = GangRank(order, inbox)
    generations: Generations[Order] | None = None
    try:
        generations = Generations(rank, work_type(rank))
        inbox.send(generations.run())
    except Exception as error:
        if generations is not None and isinstance(error, PeerLostError):
            generations.work.save_alone()
        generation = rank.membership.generation
        inbox.send(final_message(error, rank.folder, generation, rank.needed_bytes))


class Generations(Generic[Order]):
    """The loop of a rank: prepare, then form one generation after another, until one ends the rank."""

    def __init__(self, rank: GangRank[Order], work: Work[Order]) -> None:
        self.work = work
        self._rank = rank
        self._is_prepared = False
        self._formed = 0
        """Newest generation that has formed; 0 before the first."""

    def run(self) -> Ended:
        """Take part in generations until the job, or this rank's part in it, is over.

        Raises:
            PeerLostError: another rank is lost.
            Exception: the job cannot continue, or not on this node.
        """
        while True:
            directive = self._rank.inbox.newest
            if isinstance(directive, Release):
                return self._released(directive.verdict)
            self._rank.membership = directive
            ended = self.work.finished_before()
            if ended is None and not self._is_prepared:
                self._prepare()
            elif ended is None and directive.generation <= self._formed:
                self._await_next(directive)
            elif ended is None:
                ended = self._participate(directive)
            if ended is not None:
                return ended

    def _prepare(self) -> None:
        self._rank.set_up()
        self.work.prepare()
        self._is_prepared = True

    def _await_next(self, directive: Membership) -> None:
        """Wait for the next directive: the generation is over."""
        timeout_s = self._rank.order.join_timeout_s
        self._rank.inbox.wait(timeout_s)
        if self._rank.inbox.newest is directive:
            raise PeerLostError(
                f"generation {directive.generation} is over, and nothing followed in {timeout_s:g} s"
            )

    def _participate(self, membership: Membership) -> Ended | None:
        group = None
        try:
            group = self._form(membership)
            if group is None:
                return None
            self._formed = membership.generation
            ended = self.work.participate(group)
        except Exception as error:
            if group is not None and not self.work.HAS_BACKGROUND_COLLECTIVES:
                group.close()
            if isinstance(error, PeerLostError) and not self._rank.is_current:
                return None  # the node has ended the generation, and has another directive
            raise
        group.close()
        return ended

    def _form(self, membership: Membership) -> ProcessGroup | None:
        """Form a group with the other ranks; None if the node sends another directive before all have
        joined."""
        rank, order = self._rank, self._rank.order
        meeting = rank.assembly.come_together(
            membership,
            order.join_timeout_s,
            is_needed=lambda: rank.is_current and not self.work.has_record,
            commit=rank.inbox.commit,
            wait=rank.inbox.wait,
        )
        return None if meeting is None else ProcessGroup.form(meeting, rank.device, order.peer_timeout_s)

    def _released(self, verdict: Verdict) -> Ended:
        """Return the final message of a rank that is in no generation when it is released."""
        if verdict == "leave":
            return self.work.ended("left")
        if verdict == "stop":
            self.work.save_alone()
        return self.work.ended("stopped")
