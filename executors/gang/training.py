"""The training of a gang's job, step by step: the interface of a job, and the loop around it.

Between two steps all ranks exchange their signals, the tokens of their shares, and whether a checkpoint is
due. So all of them stop, save or form the next generation at the same step.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from pydantic import JsonValue

from executors.gang.checkpoints import FinishedJob, JobCheckpoints, JobResult, Position, State
from executors.gang.group import ProcessGroup, disagreement_on, number_of
from executors.gang.messages import (
    Ended,
    Joined,
    Membership,
    RankOrder,
    RankProgress,
    Release,
)
from executors.gang.rank import EndReason, GangRank, Work
from executors.gang.rank_speed import RankShare, StepSums
from executors.lora.dataset import JsonlDataset
from executors.node.checkpoints import StaleWriterError
from executors.node.losses import reportable
from executors.node.places import checkpoint_root, result_path

_log = logging.getLogger(__name__)


class BatchShare(Protocol):
    """One rank's part of the next step's batch."""

    @property
    def loss_tokens(self) -> int:
        """Number of tokens (or samples) that the loss is a mean over."""


Order = TypeVar("Order", bound=RankOrder[Any])
Share = TypeVar("Share", bound=BatchShare)


class StepRequest(IntEnum):
    """Next action that a rank requests of all ranks; the highest wish is carried out."""

    TRAIN = 0
    REGROUP = 1
    """The generation is over; the remaining ranks form the next one."""
    STOP = 2
    """The job stops, with a checkpoint if it keeps any."""
    DISCARD = 3
    """The job stops, and no state is kept."""


@dataclass(frozen=True)
class _StepBoundary:
    """Message of one rank between two steps."""

    wish: int
    loss_tokens: int
    """Number of tokens in its share of the next step."""
    is_save_due: int
    """Whether a checkpoint is due; only rank 0's value counts."""
    terms: int
    """Digest of `step_terms`."""


class GangTraining(Work[Order], Generic[Order, Share]):
    """A job that is trained step by step.

    A job implements `prepare`, `position`, `move_to`, `share`, `step`, `collect`, `restore` and `result`; the
    rest has defaults.

    Attributes:
        saved_samples: samples done of the newest checkpoint.
        dataset: the job's data, once `prepare` has opened it; its digest guards checkpoints.
        step_sums: duration of the present generation's steps, to which `step` adds its exchanges.
    """

    UNTIMED_STEPS: ClassVar[int] = 1
    """Steps of a generation before those that are measured: they warm up, and shares rest on estimates."""

    RESUMES_UNREPORTED: ClassVar[bool] = True
    """Whether an unreported checkpoint counts. Otherwise a job without reported samples starts without state,
    even if it has checkpoints."""

    def __init__(
        self, rank: GangRank[Order], *, identity: JsonValue = None, keeps_checkpoints: bool = True
    ) -> None:
        """Open the job's checkpoints.

        Args:
            identity: identifies the job's work; state of another is refused. Default: the whole workload.
        """
        super().__init__(rank)
        order = rank.order
        identity = order.workload.model_dump(mode="json") if identity is None else identity
        self.dataset: JsonlDataset | None = None
        self._keeps_checkpoints = keeps_checkpoints
        self._checkpoints = JobCheckpoints(
            checkpoint_root(order.state_root, order.cell), order.job_id, identity
        )
        self._result_path = result_path(order.cell, order.user, order.job_id)
        self._formed: Membership | None = None
        """Last generation in which this rank held the job's state; None without a state."""
        self.saved_samples = 0
        self._saved_s = 0.0
        self._node_s = 0.0
        self.step_sums = StepSums(self.UNTIMED_STEPS)
        self._stepped_s: float | None = None

    # Interface of a job

    @property
    @abstractmethod
    def position(self) -> Position:
        """Return the position of the training, the same on all ranks between two steps."""

    @abstractmethod
    def move_to(self, position: Position) -> None:
        """Set the position, once the tensors are those of this position."""

    @property
    def is_finished(self) -> bool:
        """Return whether all work is done, by default all samples of the workload."""
        total_samples = self.rank.order.workload.total_samples
        return total_samples is not None and self.position.samples_done >= total_samples

    @abstractmethod
    def share(self, rank: int, world: int) -> Share:
        """Return a rank's part of the next step's batch.

        Raises:
            ValueError: the data is unfit.
        """

    @abstractmethod
    def step(self, group: ProcessGroup, own: Share, loss_tokens: int) -> None:
        """Run a step together with the other ranks.

        Args:
            own: this rank's share.
            loss_tokens: tokens of all shares.

        Raises:
            PeerLostError: another rank is lost; the state is as before the step.
            ArithmeticError: the training has diverged. All ranks raise it.
        """

    @abstractmethod
    def collect(self, group: ProcessGroup | None) -> State | None:
        """Return the whole state on rank 0. All ranks call it at the same time.

        Args:
            group: None if this rank saves alone, after the loss of the others.

        Returns:
            None on other ranks, and if this rank alone does not have the whole state.

        Raises:
            PeerLostError: another rank is lost.
        """

    @abstractmethod
    def restore(self, group: ProcessGroup, state: State | None) -> None:
        """Continue from a state, on all ranks at the same time.

        Args:
            state: result of `collect` on rank 0; None elsewhere.

        Raises:
            ValueError: the tensors do not fit the model.
            PeerLostError: another rank is lost.
        """

    @abstractmethod
    def result(self, state: State) -> JobResult:
        """Return the files of the trained job, on rank 0."""

    def connect(self, group: ProcessGroup) -> None:
        """Prepare resources that need the other ranks, before the states are compared."""

    def disconnect(self) -> None:
        """Close the resources of `connect`, once a generation has ended in order."""

    def identities(self) -> Mapping[str, bytes]:
        """Return contents that must be the same on all ranks, by name for errors."""
        return {} if self.dataset is None else {"the dataset": self.dataset.digest.encode()}

    def step_terms(self) -> bytes:
        """Return the terms of the next step, which must be the same on all ranks."""
        return b""

    def begin(self, group: ProcessGroup) -> None:
        """Prepare the steps of a generation, once all ranks have the same state."""

    def notes(self) -> JsonValue:
        """Return what a checkpoint keeps besides the state, on rank 0; None for nothing."""
        return None

    def recall(self, notes: JsonValue) -> None:
        """Continue with the notes of a checkpoint, on rank 0."""

    def disagreement(self, name: str, ranks: list[int]) -> Exception:
        """Return the error of ranks that differ from rank 0 in one of the `identities`."""
        return disagreement_on(name, ranks)

    def spread(self, group: ProcessGroup, source: int) -> None:
        """Copy the tensors of one rank to all. Used when ranks join others that have trained."""

    def details(self) -> dict[str, int]:
        """Return further fields of the node's log when the training starts."""
        return {}

    def computed(self, own: Share) -> RankShare | None:  # noqa: ARG002
        """Return the size of the share that this rank has computed; None if the job's steps are not
        measured."""
        return None

    def flush_reports(self) -> None:
        """Send the pending reports, before this rank ends."""

    # The loop

    def participate(self, group: ProcessGroup) -> Ended | None:
        if same := self.identities():
            group.compare("the start of a generation", same, self.disagreement)
        self.connect(group)
        self._agree(group)
        self.begin(group)
        self._formed = group.membership
        ended = self._train(group)
        self.disconnect()
        return ended

    def _train(self, group: ProcessGroup) -> Ended | None:
        progressed_s = self._begin_generation(group)
        while not self.is_finished:
            began_s = time.monotonic()
            own = self.share(group.rank, group.world)
            read_s = time.monotonic() - began_s
            boundaries = self._exchange(group, own)
            wish = max(each.wish for each in boundaries)
            if wish in (StepRequest.STOP, StepRequest.DISCARD):
                return self._stop(group, keeps=wish == StepRequest.STOP)
            if boundaries[0].is_save_due:
                self._save(group)
            if wish == StepRequest.REGROUP:
                return None
            self._refuse_other_terms(boundaries)
            before = self.position.samples_done
            started_s = time.monotonic()
            self.step(group, own, sum(each.loss_tokens for each in boundaries))
            self._stepped_s = time.monotonic()
            step_s = read_s + self._stepped_s - started_s
            samples = self.position.samples_done - before
            if (computed := self.computed(own)) is not None:
                self.step_sums.note(samples, computed, read_s, self._stepped_s - started_s)
            self._node_s += step_s
            if group.rank == 0 and self._stepped_s - progressed_s >= self.rank.order.progress_s:
                progressed_s = self._stepped_s
                self._send_progress()
        return self._finish(group)

    def _begin_generation(self, group: ProcessGroup) -> float:
        now_s = time.monotonic()
        pause_s = None if self._stepped_s is None else now_s - self._stepped_s
        self._node_s, self._saved_s, self.step_sums = 0.0, now_s, StepSums(self.UNTIMED_STEPS)
        self.rank.inbox.send(
            Joined(
                generation=group.membership.generation,
                samples_done=self._counted_samples,
                dataset_samples=None if self.dataset is None else len(self.dataset),
                pause_s=pause_s,
                details=self.details(),
            )
        )
        return now_s

    def _exchange(self, group: ProcessGroup, own: Share) -> list[_StepBoundary]:
        is_save_due = time.monotonic() - self._saved_s >= self.rank.order.checkpoint_s
        wish, terms = self._wish(group.membership), number_of(self.step_terms())
        mine = _StepBoundary(wish, own.loss_tokens, is_save_due, terms)
        return [_StepBoundary(*row) for row in group.gather("the boundary of a step", astuple(mine))]

    @staticmethod
    def _refuse_other_terms(boundaries: list[_StepBoundary]) -> None:
        others = [rank for rank, each in enumerate(boundaries) if each.terms != boundaries[0].terms]
        if others:
            raise disagreement_on("the shares of the next step", others)

    def _wish(self, membership: Membership) -> StepRequest:
        """Return the action that this rank requests of all, by its node's newest directive."""
        newest = self.rank.inbox.newest
        if isinstance(newest, Release):
            if newest.verdict == "leave":
                # It continues to train until the next generation is complete, if there is time.
                return StepRequest.REGROUP if time.time() >= newest.leave_s else StepRequest.TRAIN
            return StepRequest.STOP if newest.verdict == "stop" else StepRequest.DISCARD
        if newest.generation > membership.generation:
            meeting = self.rank.assembly.attend(newest)
            if meeting is not None:
                meeting.announce()
                if newest.rank == 0 and meeting.all_ready:
                    return StepRequest.REGROUP
        return StepRequest.TRAIN

    # The state at the start of a generation

    def _agree(self, group: ProcessGroup) -> None:
        """Copy the newest state of any rank to all; that of the last checkpoint if no rank has one."""
        held = self.position.samples_done if self._formed is not None else -1
        rows = group.gather("the state of the job", [held, self.saved_samples])
        self.saved_samples = max(row[1] for row in rows)
        samples = [row[0] for row in rows]
        if max(samples) < 0:
            self._resume(group)
        elif min(samples) < max(samples):
            if held < max(samples):
                self._formed = None  # until the newer state is complete
            self._copy(group, samples.index(max(samples)))

    def _resume(self, group: ProcessGroup) -> None:
        """Continue from the newest checkpoint, if there is any."""
        order, found = self.rank.order, None
        if self._keeps_checkpoints and (order.resume_samples > 0 or self.RESUMES_UNREPORTED):
            found = group.led("looking for a checkpoint", self._awaited_checkpoint)
        position = self._spread_position(group, 0, Position() if found is None else found[1])
        if position.samples_done == 0:
            self.spread(group, 0)
        else:
            self.restore(group, None if found is None else found[0])
            if found is not None and found[2] is not None:
                self.recall(found[2])
            self.saved_samples = position.samples_done
        self.move_to(position)
        if position.samples_done < order.resume_samples and group.rank == 0:
            _log.warning(
                "run behind job=%s samples_done=%d expected=%d",
                *(order.job_id, position.samples_done, order.resume_samples),
            )

    def _copy(self, group: ProcessGroup, source: int) -> None:
        position = self._spread_position(group, source, self.position)
        self.spread(group, source)
        self.move_to(position)

    @staticmethod
    def _spread_position(group: ProcessGroup, source: int, position: Position) -> Position:
        loss = math.nan if position.loss is None else position.loss
        numbers = torch.tensor([position.samples_done, position.steps, loss], dtype=torch.float64)
        group.spread("the position of the job", [numbers], source)
        samples_done, steps, loss = numbers.tolist()
        return Position(int(samples_done), int(steps), None if math.isnan(loss) else loss)

    def _awaited_checkpoint(self) -> tuple[State, Position, JsonValue] | None:
        order, generation = self.rank.order, self.rank.membership.generation
        newest = self._checkpoints.await_newest(order.job_id, order.resume_samples, order.checkpoint_wait_s)
        if newest is None:
            return None
        if newest.token > generation:
            raise StaleWriterError(f"generation {generation} was replaced by {newest.token}")
        return self._checkpoints.read(newest, self.dataset)

    # Checkpoints

    def _save(self, group: ProcessGroup) -> None:
        """Write a checkpoint, with all ranks: none counts it before it is on disk."""
        position = self.position
        if self._keeps_checkpoints and self.saved_samples < position.samples_done:
            state = self.collect(group)
            group.led("writing a checkpoint", lambda: self._write(state or {}))
            self._note_saved()
        self._saved_s = time.monotonic()

    def save_alone(self) -> None:
        newest = self.rank.inbox.newest
        leads = isinstance(newest, Membership) and newest.rank == 0
        if self._formed is None or not (leads or self._formed.rank == 0) or not self._keeps_checkpoints:
            return
        if self.saved_samples < self.position.samples_done:
            with suppress(Exception):  # the failure is reported in any case
                state = self.collect(None)
                if state is not None:
                    self._write(state)
                    self._note_saved()

    def _write(self, state: State) -> None:
        self.rank.needed_bytes = _size(state)
        generation = self.rank.membership.generation
        self._checkpoints.save(state, self.position, self.dataset, generation, self.notes())

    def _note_saved(self) -> None:
        self.saved_samples = self.position.samples_done
        self._send_progress()

    # Ends

    def _stop(self, group: ProcessGroup, *, keeps: bool) -> Ended:
        if keeps:
            self._save(group)
        self.flush_reports()
        return self.ended("stopped")

    def _finish(self, group: ProcessGroup) -> Ended:
        """Publish the trained files; the other ranks wait."""
        state = self.collect(group)
        finished = group.led("publishing the result", lambda: self._publish(state or {}))
        self.saved_samples = self.position.samples_done
        self.flush_reports()
        return _with_result(self.ended("finished"), finished)

    def _publish(self, state: State) -> FinishedJob:
        self.rank.needed_bytes = _size(state)
        root, generation = self.rank.order.output_root, self.rank.membership.generation
        finished = self._checkpoints.publish(
            self.result(state), self.position, root, self._result_path, generation
        )
        self.rank.folder.remove()
        return finished

    @property
    def has_record(self) -> bool:
        return self._checkpoints.is_finished

    def finished_before(self) -> Ended | None:
        finished = self._checkpoints.finished(self._result_path)
        if finished is None:
            return None
        generation = self.rank.membership.generation
        self.rank.inbox.send(
            Joined(generation=generation, samples_done=finished.samples_done, dataset_samples=None)
        )
        ended = self.ended("finished").model_copy(
            update={"samples_done": finished.samples_done, "loss": finished.loss}
        )
        return _with_result(ended, finished if self.rank.leads else None)

    def ended(self, reason: EndReason) -> Ended:
        return Ended(
            reason=reason,
            samples_done=self._counted_samples,
            loss=reportable(self._position.loss),
            node_s=self._node_s,
        )

    # Messages

    def _send_progress(self) -> None:
        self.rank.inbox.send(
            RankProgress(
                samples_done=self._counted_samples,
                loss=reportable(self._position.loss),
                node_s=self._node_s,
                measured=self.step_sums.pop(
                    self.rank.membership.world, "bfloat16" if self.rank.device.type == "cuda" else "float32"
                ),
                leads=self.rank.leads,
            )
        )

    @property
    def _counted_samples(self) -> int:
        """Return the samples done for reports: those of the newest checkpoint, or all of a job without
        checkpoints."""
        return self.saved_samples if self._keeps_checkpoints else self._position.samples_done

    @property
    def _position(self) -> Position:
        return Position() if self._formed is None else self.position


def _size(state: State) -> int:
    return max(1, sum(tensor.nbytes for tensors in state.values() for tensor in tensors.values()))


def _with_result(ended: Ended, finished: FinishedJob | None) -> Ended:
    """Return the final message of the rank whose node reports the result."""
    if finished is None:
        return ended
    result = {
        "answers": True,
        "adapter_path": finished.adapter_path,
        "adapter_digest": finished.adapter_digest,
    }
    return ended.model_copy(update=result)
