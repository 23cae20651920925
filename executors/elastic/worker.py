"""A worker process: one rank of a job, from one generation to the next.

Between generations it keeps model and optimizer in memory; what is on disk is for those that start anew.
"""

import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Literal

import torch
from transformers.utils.logging import disable_progress_bar

from executors.devices import use_device
from executors.elastic.agreement import compare_states, spread_state
from executors.elastic.checkpoint import FinishedJob, JobCheckpoints, publish, reportable
from executors.elastic.group import Group, Signal, Wish
from executors.elastic.messages import DIRECTIVES, ElasticDirective, Joined, Progress, WorkerOrder
from executors.elastic.model import load_model
from executors.elastic.training import Trainer
from executors.gang.faults import MissingPeersError, last_word
from executors.gang.folder import JobFolder
from executors.gang.inbox import Inbox
from executors.gang.meeting import Meeting, PeerLostError
from executors.gang.membership import Membership
from executors.gang.messages import Ended, Failed, Release
from executors.gang.models import model_directory
from executors.gang.network import use_interface
from executors.gang.places import checkpoint_root, job_folder, result_path
from executors.lora.columns import with_columns
from executors.lora.dataset import DatasetRoot
from executors.lora.faults import described
from executors.lora.model_kind import text_records
from executors.node.checkpoints import StaleWriterError

_POLL_S = 0.005


def run_worker(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """The whole life of a worker process. Its last word is how it has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # The node decides when its workers stop, even if a supervisor signals all processes.
        signal.signal(number, signal.SIG_IGN)
    order = WorkerOrder.model_validate_json(order_json)
    inbox = Inbox(connection, DIRECTIVES)
    try:
        worker = Worker(order, inbox)
    except Exception as error:
        inbox.tell(Failed(error=described(error), permanent=False))
        return
    try:
        inbox.tell(worker.run())
    except Exception as error:
        inbox.tell(worker.fail(error))


class Worker:
    """One rank of a job."""

    def __init__(self, order: WorkerOrder, inbox: Inbox[ElasticDirective]) -> None:
        self._order = order
        self._inbox = inbox
        self._folder = JobFolder(job_folder(order.state_root, order.cell, order.job_id))
        self._checkpoints = JobCheckpoints(
            checkpoint_root(order.state_root, order.cell), order.job_id, order.workload
        )
        self._result_path = result_path(order.cell, order.user, order.job_id)
        self._device = torch.device(use_device(order.device, order.gpu))
        self._trainer: Trainer | None = None
        self._meeting: Meeting | None = None
        self._told: ElasticDirective = order.membership
        self._present = order.membership
        """The generation that it forms or trains in."""
        self._formed: Membership | None = None
        """The last generation that came together."""
        self._saved_samples = 0
        self._saved_s = 0.0
        self._checkpoint_bytes = 0
        self._node_s = 0.0
        self._stepped_s: float | None = None

    def run(self) -> Ended:
        """Take part in generations until the job or this process's part in it is over.

        Raises:
            PeerLostError: another process is gone.
            Exception: the job cannot be trained, or not here.
        """
        while True:
            directive = self._latest
            if isinstance(directive, Release):
                return self._dismissed(directive)
            ended = self._finished_before(directive)
            if ended is not None:
                return ended
            if self._trainer is None:
                self._prepare()
                continue
            if self._formed is not None and directive.generation <= self._formed.generation:
                timeout_s = self._order.join_timeout_s
                self._inbox.wait(timeout_s)
                if self._latest is directive:
                    raise MissingPeersError(
                        f"generation {directive.generation} is over, and nothing followed in {timeout_s:g} s"
                    )
                continue
            ended = self._take_part(directive)
            if ended is not None:
                return ended

    def fail(self, error: Exception) -> Failed:
        """The last word of a process that cannot go on. What it can still do for the others is done."""
        if isinstance(error, PeerLostError):
            self._save_if_leader()
        return last_word(error, self._folder, self._present.generation, max(self._checkpoint_bytes, 1))

    @property
    def _latest(self) -> ElasticDirective:
        """Latest directive of the node; earlier ones no longer count."""
        self._told = (self._inbox.take() or [self._told])[-1]
        return self._told

    # Beginning

    def _prepare(self) -> None:
        order = self._order
        disable_progress_bar()
        torch.set_num_threads(order.threads)
        use_interface(order.worker_host)
        # What is cheap to refuse is refused before anything heavy is loaded.
        directory = model_directory(order.model_root, order.workload.model)
        data = order.workload.dataset
        form = with_columns(text_records(directory), data.columns)
        dataset = DatasetRoot(order.dataset_root).open(data.path, form=form)
        seed = order.workload.hyperparameters.seed
        model = load_model(directory, order.workload.adapter, seed, self._device, order.workload.model)
        self._trainer = Trainer(order.workload, model, dataset)
        self._trainer.warm_up()

    @property
    def _ready(self) -> Trainer:
        assert self._trainer is not None, "it is prepared before it takes part"
        return self._trainer

    def _form(self, membership: Membership) -> Group | None:
        """Come together with the others of a generation; None if the node wants something else before
        all have come."""
        deadline_s = time.monotonic() + self._order.join_timeout_s
        while self._latest is membership and not self._checkpoints.is_finished:
            meeting = self._meeting_of(membership)
            if meeting is not None:
                meeting.announce()
                self._inbox.commit()
                meeting.enter()
                if meeting.all_entered:
                    return Group.form(meeting, self._device, self._order.peer_timeout_s)
            if self._folder.read_failure(membership.generation) is not None:
                raise PeerLostError("another worker has failed before all had come")
            if time.monotonic() > deadline_s:
                raise MissingPeersError(
                    f"not all {membership.world} workers of generation {membership.generation} have come "
                    f"in {self._order.join_timeout_s:g} s"
                )
            self._inbox.wait(_POLL_S)
        meeting = self._meeting
        if meeting is None or meeting.membership is not membership or meeting.leave():
            return None
        return Group.form(meeting, self._device, self._order.peer_timeout_s)

    def _meeting_of(self, membership: Membership) -> Meeting | None:
        if self._meeting is None or self._meeting.membership is not membership:
            self._meeting = Meeting.attend(self._folder, membership, self._order.worker_host)
        return self._meeting

    def _agree(self, group: Group) -> None:
        """Have all processes of a new generation hold the newest state that one of them has, or the last
        checkpoint if none has any."""
        trainer = self._ready
        standings = compare_states(
            group, trainer, holds_state=self._formed is not None, saved_samples=self._saved_samples
        )
        newest = max(standing.samples_done for standing in standings)
        if newest < 0 and group.membership.rank == 0:
            self._resume(group.membership.generation)
        self._saved_samples = max(self._saved_samples, *(standing.saved_samples for standing in standings))
        if newest < 0 or any(standing.samples_done < newest for standing in standings):
            if trainer.samples_done < newest:
                self._formed = None  # what it holds is worth nothing until all of the newer state is there
            self._saved_samples = spread_state(group, trainer, standings, self._saved_samples)

    def _resume(self, generation: int) -> None:
        """Go on from the newest checkpoint, if the job keeps any."""
        order = self._order
        if not order.workload.keeps_checkpoints:
            return
        newest = self._checkpoints.await_newest(order.resume_samples, order.checkpoint_wait_s)
        if newest is not None:
            if newest.token > generation:
                raise StaleWriterError(f"generation {generation} was replaced by {newest.token}")
            self._checkpoints.restore(newest, self._ready)
            self._saved_samples = self._ready.samples_done

    # Training

    def _take_part(self, membership: Membership) -> Ended | None:
        """Train in a generation until the job is over, or the generation is, which yields None."""
        group = None
        self._present = membership
        try:
            group = self._form(membership)
            if group is None:
                return None
            self._agree(group)
            self._formed = membership
            return self._train(group)
        except PeerLostError:
            if self._latest is membership:
                raise
            # The node knows that the generation is over, and what comes next.
            return None
        finally:
            if group is not None:
                group.close()

    def _train(self, group: Group) -> Ended | None:
        trainer, rank, world = self._ready, group.membership.rank, group.membership.world
        now_s = time.monotonic()
        pause_s = None if self._stepped_s is None else now_s - self._stepped_s
        self._node_s, self._saved_s, progressed_s = 0.0, now_s, now_s
        self._inbox.tell(
            Joined(
                generation=group.membership.generation,
                samples_done=self._counted_samples,
                dataset_samples=len(trainer.dataset),
                pause_s=pause_s,
            )
        )
        while not trainer.finished:
            began_s = time.monotonic()
            own = trainer.share(rank, world)
            read_s = time.monotonic() - began_s
            signals = group.exchange(Signal(self._wish(group), own.loss_tokens, self._saved_samples))
            self._note_saved(max(signal.saved_samples for signal in signals))
            wish = max(signal.wish for signal in signals)
            if wish in (Wish.STOP, Wish.DISCARD):
                return self._stop(group, with_checkpoint=wish == Wish.STOP)
            if wish == Wish.REGROUP:
                return None
            started_s = time.monotonic()
            trainer.step(own, sum(signal.loss_tokens for signal in signals), group.add_up)
            self._stepped_s = time.monotonic()
            self._node_s += read_s + self._stepped_s - started_s
            if rank == 0:
                if self._stepped_s - self._saved_s >= self._order.checkpoint_s and not trainer.finished:
                    self._save()
                if self._stepped_s - progressed_s >= self._order.progress_s:
                    progressed_s = self._stepped_s
                    self._tell_progress()
        return self._finish(group)

    def _wish(self, group: Group) -> Wish:
        """Return what this process wants all to do, by its node's latest directive."""
        latest = self._latest
        if isinstance(latest, Release):
            if latest.verdict == "leave":
                # It trains on until the next generation is complete, if there is time.
                return Wish.REGROUP if time.time() >= latest.leave_s else Wish.TRAIN
            return Wish.STOP if latest.verdict == "stop" else Wish.DISCARD
        if latest.generation > group.membership.generation:
            meeting = self._meeting_of(latest)
            if meeting is not None:
                meeting.announce()
                if latest.rank == 0 and meeting.all_ready:
                    return Wish.REGROUP
        return Wish.TRAIN

    def _stop(self, group: Group, *, with_checkpoint: bool) -> Ended:
        """End the job where it is, all processes together: the last ones to go know what has been saved."""
        if with_checkpoint:
            self._save_if_leader()
        signals = group.exchange(Signal(Wish.STOP, 0, self._saved_samples))
        self._saved_samples = max(signal.saved_samples for signal in signals)
        return self._ended("stopped")

    def _finish(self, group: Group) -> Ended:
        """Publish what has been trained; the others wait for it."""
        trainer, finished = self._ready, None
        if group.membership.rank == 0:
            finished = publish(trainer, self._order.output_root, self._result_path)
            self._checkpoints.finish(finished, group.membership.generation)
            self._folder.remove()
        group.exchange(Signal(Wish.STOP, 0, trainer.samples_done))
        self._saved_samples = trainer.samples_done
        return _with_result(self._ended("finished"), finished)

    def _finished_before(self, membership: Membership) -> Ended | None:
        """The last word of a process that finds the job finished: its leader reports it, once or again."""
        finished = self._checkpoints.finished(self._result_path)
        if finished is None:
            return None
        word = {"samples_done": finished.samples_done, "loss": finished.loss}
        self._inbox.tell(
            Joined(
                generation=membership.generation,
                samples_done=finished.samples_done,
                dataset_samples=None,
                pause_s=None,
            )
        )
        ended = self._ended("finished").model_copy(update=word)
        return _with_result(ended, finished if membership.rank == 0 else None)

    # Leaving

    def _dismissed(self, release: Release) -> Ended:
        """The last word of a process that is in no group when it is to go."""
        if release.verdict == "leave":
            return self._ended("left")
        if release.verdict == "stop":
            self._save_if_leader()
        return self._ended("stopped")

    def _save_if_leader(self) -> None:
        """Keep what has been learned, if this process is the one to do so and a disk takes it."""
        latest = self._latest
        leads = isinstance(latest, Membership) and latest.rank == 0
        if self._formed is not None and (leads or self._formed.rank == 0):
            with suppress(Exception):  # the failure is reported in any case
                self._save()

    def _save(self) -> None:
        if self._order.workload.keeps_checkpoints and self._saved_samples < self._ready.samples_done:
            self._checkpoint_bytes = self._checkpoints.save(self._ready, self._present.generation)
            self._note_saved(self._ready.samples_done)
        self._saved_s = time.monotonic()

    def _note_saved(self, saved_samples: int) -> None:
        if saved_samples > self._saved_samples:
            self._saved_samples = saved_samples
            self._tell_progress()

    def _tell_progress(self) -> None:
        self._inbox.tell(
            Progress(
                samples_done=self._counted_samples,
                loss=self._loss,
                node_s=self._node_s,
                leads=self._present.rank == 0,
            )
        )

    def _ended(self, reason: Literal["left", "stopped", "finished"]) -> Ended:
        return Ended(reason=reason, samples_done=self._counted_samples, loss=self._loss, node_s=self._node_s)

    @property
    def _counted_samples(self) -> int:
        """Samples done for reports: those of the newest checkpoint, or all of a job without checkpoints."""
        if self._order.workload.keeps_checkpoints:
            return self._saved_samples
        return 0 if self._formed is None else self._ready.samples_done

    @property
    def _loss(self) -> float | None:
        return None if self._trainer is None else reportable(self._trainer.loss)


def _with_result(ended: Ended, finished: FinishedJob | None) -> Ended:
    """The last word of the process that answers for the result."""
    if finished is None:
        return ended
    has_adapter = finished.adapter_digest is not None
    result = {
        "answers": True,
        "adapter_path": finished.path if has_adapter else None,
        "adapter_digest": finished.adapter_digest,
    }
    return ended.model_copy(update=result)
