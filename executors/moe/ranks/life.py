"""The life of a rank process, whatever its job does: it begins, meets the others, works, and says its last
word."""

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from transformers.utils.logging import disable_progress_bar

from executors.devices import use_device
from executors.gang.faults import MissingPeersError, last_word
from executors.gang.folder import JobFolder
from executors.gang.group import ProcessGroup
from executors.gang.inbox import Inbox
from executors.gang.meeting import Meeting, PeerLostError
from executors.gang.messages import Ended, Failed
from executors.gang.network import use_interface
from executors.gang.places import job_folder
from executors.lora.faults import described
from executors.moe.ranks.messages import DIRECTIVES, MoeRankOrder, RankDirective

_POLL_S = 0.005


class Rank:
    """One rank of a job.

    Attributes:
        order: what it is to do.
        device: where it computes.
        needed_bytes: of a checkpoint that it writes, for a disk that refuses it.
    """

    def __init__(self, order: MoeRankOrder, inbox: Inbox[RankDirective]) -> None:
        """Have torch use the device, the threads and the network interface of the order.

        Raises:
            OSError: the worker host is another machine.
        """
        self.order = order
        self.inbox = inbox
        self.folder = JobFolder(job_folder(order.state_root, order.cell, order.job_id))
        self.needed_bytes = 1
        self.device = torch.device(use_device(order.device, order.gpu))
        torch.set_num_threads(order.threads)
        disable_progress_bar()
        use_interface(order.worker_host)

    @property
    def leads(self) -> bool:
        """Whether it reports for all."""
        return self.order.membership.rank == 0

    def meet(self) -> ProcessGroup:
        """Come together with the other ranks, once this one has loaded all that it needs.

        Raises:
            PeerLostError: another has failed before, or not all have come within `join_timeout_s`.
        """
        order, membership = self.order, self.order.membership
        deadline_s = time.monotonic() + order.join_timeout_s
        meeting: Meeting | None = None
        while True:
            meeting = meeting or Meeting.attend(self.folder, membership, order.worker_host)
            if meeting is not None:
                meeting.announce()
                if meeting.all_ready:
                    self.inbox.commit()
                    meeting.enter()
                    if meeting.all_entered:
                        return ProcessGroup.form(meeting, self.device, order.peer_timeout_s)
            if self.folder.read_failure(membership.generation) is not None:
                raise PeerLostError("another rank has failed before all had come")
            if time.monotonic() > deadline_s:
                raise MissingPeersError(
                    f"not all {membership.world} ranks of generation {membership.generation} have come in "
                    f"{order.join_timeout_s:g} s"
                )
            time.sleep(_POLL_S)

    def fail(self, error: Exception) -> Failed:
        """The last word of a rank that cannot go on, which others can read, too."""
        return last_word(error, self.folder, self.order.membership.generation, self.needed_bytes)


Work = Callable[[Rank], Ended]
"""Work of a rank from its beginning to its end; it raises where it cannot go on."""


def live(order_json: str, connection: "Connection[bytes, bytes]", work: Work) -> None:
    """The whole life of a rank process. Its last word is how it has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # The node decides when its ranks stop, even if a supervisor signals all processes.
        signal.signal(number, signal.SIG_IGN)
    order = MoeRankOrder.model_validate_json(order_json)
    inbox = Inbox(connection, DIRECTIVES)
    try:
        rank = Rank(order, inbox)
    except Exception as error:
        inbox.tell(Failed(error=described(error), permanent=False))
        return
    try:
        inbox.tell(work(rank))
    except Exception as error:
        inbox.tell(rank.fail(error))
