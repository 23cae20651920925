"""A rank of a service, from its first batch to its last.

Between two batches all ranks exchange whether they are to end, and rank 0 sends the next step: a batch, with
its requests; a wait, which is repeated often enough that ranks are not counted as lost; a placement that the
cell has commanded, so that all ranks apply it at the same batch.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import TypeAdapter

from executors.gang.batches import share
from executors.gang.group import ProcessGroup
from executors.gang.job_models import check_length, model_directory, named_as_in_job
from executors.gang.messages import Ended, Joined, RankProgress
from executors.gang.rank import EndReason, GangRank, Work, run_rank_process
from executors.lora.dataset import DatasetRoot
from executors.lora.records import with_columns
from executors.moe.runner import MoeOrder
from executors.moe.serving.exchange import RankExchange
from executors.moe.serving.kernels import ServiceKernels
from executors.moe.serving.model import ServingModel
from executors.moe.serving.requests import BatchSchedule, Prompts, ServiceStep, StepWord
from executors.moe.serving.service import ExpertService, ServiceTerms
from executors.moe.serving.statistics import Latencies, NewestAnswers, RoutingCounts, ServiceSummary
from executors.node.files import write_folder
from executors.node.places import result_path
from schemas.base import Record
from schemas.experts.commands import LayerPlacement
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, LayerRouting
from schemas.experts.workload import MoeServeWorkload
from solvers.compiled import Ints
from solvers.experts.paths import PathProfile
from solvers.experts.schemes import SCHEMES

SUMMARY, ANSWERS = "serving.json", "answers.jsonl"
"""Files of a service in its folder below the output root: a `ServiceSummary`, and its `NewestAnswers`."""
_WORDS: tuple[StepWord, ...] = get_args(StepWord)
_LONGEST_SILENCE_S = 60.0
"""Longest time between two progress reports of the leader: the cell counts a run without reports as lost
(s)."""
_LONGEST_WAIT_S = 0.25
_MICROSECONDS = 1e6
_PLACEMENTS: TypeAdapter[tuple[LayerPlacement, ...]] = TypeAdapter(tuple[LayerPlacement, ...])

_log = logging.getLogger(__name__)


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    run_rank_process(MoeOrder, ExpertServing, order_json, connection)


class Placed(Record):
    """Placement of the experts of some layers from the next batch on: see `ExpertsPlaced`."""

    revision: int
    layers: tuple[LayerPlacement, ...]


@dataclass(frozen=True)
class _BatchBoundary:
    """Message of one rank between two batches."""

    is_released: int
    batch_us: int
    """Duration of the batch before on this rank."""
    word: int = 0
    """Next step; set by rank 0, like all later fields."""
    count: int = 0
    revision: int = 0
    placement_bytes: int = 0


_FIELDS = len(fields(_BatchBoundary))


class ExpertServing(Work[MoeOrder]):
    """Serves until all requests are answered, or the service is to end. See `Work`.

    Its ranks raise DisagreementError if they serve different models, or have decided differently.
    """

    def __init__(self, rank: GangRank[MoeOrder]) -> None:
        super().__init__(rank)
        workload = rank.order.workload
        assert isinstance(workload, MoeServeWorkload), "RANK_WORK names this work for its kind"
        self._workload = workload
        self._done = self._reported_done = rank.order.resume_samples
        self._batches = self._revised = 0
        self._node_s = 0.0
        self._revision = 0
        self._last_s: float | None = None
        """Duration of the batch before on this rank (s); None once it is sent."""
        self._waited_s: list[float] = []
        """Waiting times of its requests since their arrival (s)."""
        self._batch = range(0)
        """The requests of the batch before."""
        self._latencies = Latencies()
        self._longest_wait_s = min(_LONGEST_WAIT_S, rank.order.peer_timeout_s / 4)

    def prepare(self) -> None:
        order, workload = self.rank.order, self._workload
        directory = model_directory(order.model_root, workload.model)
        data = workload.requests.dataset
        form = with_columns(Prompts(), data.columns)
        self._dataset = DatasetRoot(order.dataset_root).open(data.path, form=form)
        with named_as_in_job(directory, workload.model):
            self._model = model = ServingModel.load(directory)
            model.gate_by(workload.gating)
        check_length(model.module, workload.model, "requests may have", workload.sequence_length)
        self._router_bytes = model.router_bytes()
        self._trained = self._trained_paths(directory)
        # A resumed service with a placement has nothing to learn from its model's training.
        self._is_profile_due = workload.profile_batches > 0 if self._trained is None else not order.placement
        self._layers = model.detach_experts(workload.most_experts_per_device, self.rank.device)
        self._kernels = ServiceKernels(
            workload.scheme, workload.most_experts_per_device, order.membership.world, model.experts
        )

    def participate(self, group: ProcessGroup) -> Ended:
        order, workload = self.rank.order, self._workload
        same = {
            "the dataset": self._dataset.digest.encode(),
            "the model": self._router_bytes,
            "the workload": workload.model_dump_json().encode(),
            "the placement": _PLACEMENTS.dump_json(order.placement),
            "the sample paths of the model": _bytes_of(self._trained),
        }
        self._exchange = RankExchange.connect(group, self.rank.device, order.peer_timeout_s)
        group.compare("the beginning of the service", same)
        terms = ServiceTerms(
            SCHEMES[workload.scheme],
            workload.most_experts_per_device,
            workload.path_length,
            workload.profile_batches,
        )
        self._service = ExpertService(self._exchange, self._layers, terms, self._trained)
        try:
            self._model.serve_by(self._service)
            return self._run()
        finally:
            self._service.close()

    def _trained_paths(self, directory: Path) -> PathProfile | None:
        """Return the sample paths of the model's training; None without usable ones: then the service
        profiles its first batches."""
        try:
            return self._model.trained_paths(directory, self._workload.path_length)
        except ValueError as error:
            batches = self._workload.profile_batches
            _log.warning(
                "sample paths refused job=%s error=%s: %d batches are profiled instead",
                *(self.rank.order.job_id, error, batches),
            )
            return None

    def _run(self) -> Ended:
        order, workload = self.rank.order, self._workload
        self._numbers = np.zeros(-(-workload.batch_size // self._exchange.world), np.int64)
        """This rank's answers to its share of a batch, padded."""
        self._answers = NewestAnswers(self._model.word_of)
        self._routed = RoutingCounts(self._service.layer_count, self._service.expert_count)
        self._schedule = BatchSchedule(
            workload.requests, workload.total_samples, workload.batch_size, self._done, time.time()
        )
        if order.placement:
            self._service.stand(order.placement)
            self._revision = order.revision
        self.rank.inbox.send(
            Joined(
                generation=self.rank.membership.generation,
                samples_done=self._done,
                dataset_samples=len(self._dataset),
            )
        )
        self._reported_s = self._progressed_s = time.monotonic()
        self._report_news()
        while True:
            self._kernels.change_over()
            step = self._agree()
            if step is None or step.word == "over":
                return self._end("stopped" if step is None else "finished")
            if step.word == "serve":
                self._serve(step.count)
            elif self.rank.leads:
                self.rank.inbox.wait(step.wait_s)
            self._report_news()

    def _agree(self) -> ServiceStep | None:
        """Return the next step of all ranks; None if they are to end."""
        step, placed = ServiceStep("wait"), b""
        revision = self._revision
        if self.rank.leads:
            step = self._schedule.step(self._done, time.time())
            revision, placed = self._commanded()
        mine = _BatchBoundary(
            is_released=self.rank.inbox.release is not None,
            batch_us=round((self._last_s or 0.0) * _MICROSECONDS),
            word=_WORDS.index(step.word),
            count=step.count,
            revision=revision,
            placement_bytes=len(placed),
        )
        numbers = np.array([*vars(mine).values(), *self._numbers])
        gathered = self._exchange.gather("the boundary of a batch", numbers)
        boundaries = [_BatchBoundary(*row[:_FIELDS]) for row in gathered.tolist()]
        self._note_batch(max(each.batch_us for each in boundaries) / _MICROSECONDS, gathered[:, _FIELDS:])
        if any(each.is_released for each in boundaries):
            return None
        leading = boundaries[0]
        if leading.placement_bytes:
            placed = self._exchange.spread("a placement", placed, leading.placement_bytes)
            self._stand(leading.revision, placed)
        return ServiceStep(_WORDS[leading.word], leading.count, min(step.wait_s, self._longest_wait_s))

    def _commanded(self) -> tuple[int, bytes]:
        """Return the newest revision that the cell has commanded, and its changes."""
        revision, layers = self._revision, {}
        for instruction in self.rank.inbox.drain_instructions():
            placed = Placed.model_validate(instruction.data, strict=False)
            if placed.revision > revision and self._can_stand(placed):
                revision = placed.revision
                layers.update({each.layer: each for each in placed.layers})
        return revision, _PLACEMENTS.dump_json(tuple(layers.values())) if layers else b""

    def _can_stand(self, placed: Placed) -> bool:
        try:
            self._service.check(placed.layers)
        except ValueError as error:
            _log.error("placement refused job=%s error=%s", self.rank.order.job_id, error)
            return False
        return True

    def _stand(self, revision: int, placed: bytes) -> None:
        # Routing until now is reported with the placement that it used.
        self._report_routed()
        self._service.stand(_PLACEMENTS.validate_json(placed))
        self._revision = revision

    def _serve(self, count: int) -> None:
        requests = range(self._done, self._done + count)
        places = share(count, self._exchange.rank, self._exchange.world)
        began_s = time.monotonic()
        sequences = [self._tokens_of(requests[place]) for place in places]
        answers = self._model.answer(sequences)
        if answers is not None:
            self._numbers[: len(answers)] = answers.argmax(dim=1).cpu()
        self._last_s = time.monotonic() - began_s
        self._waited_s = self._schedule.waited_s(requests, time.time())
        self._batch = requests
        self._done += count
        self._batches += 1
        self._revised += sum(passage.is_revised for passage in self._service.passages)
        self._routed.add(self._service.passages)

    def _tokens_of(self, request: int) -> Sequence[int]:
        number, tokenizer = request % len(self._dataset), self._model.tokenizer
        assert tokenizer is not None, "it was loaded"
        return self._dataset.tokenized(number, tokenizer, self._workload.sequence_length).token_ids

    def _note_batch(self, batch_s: float, numbers: Ints) -> None:
        if self._last_s is None:
            return
        if self.rank.leads:
            self._answers.add(self._batch, numbers.tolist())
        self._node_s += batch_s
        self._latencies.add(batch_s, self._waited_s)
        self._last_s = None

    # Reports, by the leader

    def _report_news(self) -> None:
        if not self.rank.leads:
            return
        now_s, profiled = time.monotonic(), self._service.profiled
        if self._is_profile_due and profiled is not None:
            self._is_profile_due = False
            self.rank.report(
                ExpertsProfiled,
                self._done,
                layers=self._routed.drain() if self._trained is None else _counts_of(self._trained),
                path_length=self._workload.path_length,
                paths=profiled.paths,
                accuracy=profiled.accuracy,
                profiled_in="service" if self._trained is None else "training",
            )
            self._reported_s = now_s
        if now_s - self._reported_s >= self.rank.order.report_interval_s:
            self._report_routed()
        silent_s = now_s - self._progressed_s
        is_due = silent_s >= self.rank.order.progress_s and self._done > self._reported_done
        if is_due or silent_s >= _LONGEST_SILENCE_S:
            self._progressed_s, self._reported_done = now_s, self._done
            self.rank.inbox.send(RankProgress(samples_done=self._done, node_s=self._node_s, leads=True))

    def _report_routed(self) -> None:
        """Report the routing since the last report, unless it is empty or the profile stage lasts."""
        if not self.rank.leads or self._service.profiled is None or not self._routed.batches:
            return
        now_s = time.monotonic()
        batches, revised = self._routed.batches, self._routed.revised
        self.rank.report(
            ExpertsRouted,
            self._done,
            layers=self._routed.drain(),
            batches=batches,
            interval_s=now_s - self._reported_s,
            revised=revised,
            revision=self._revision,
        )
        self._reported_s = now_s

    def _end(self, reason: Literal["stopped", "finished"]) -> Ended:
        self._report_routed()
        summary = ServiceSummary(
            requests=self._done - self.rank.order.resume_samples,
            batches=self._batches,
            revised=self._revised,
            revision=self._revision,
            batch=self._latencies.batch,
            request=self._latencies.request,
        )
        if self.rank.leads:
            order = self.rank.order
            folder = order.output_root / result_path(order.cell, order.user, order.job_id)
            content = summary.model_dump_json(indent=2).encode()
            write_folder(folder, {SUMMARY: content, ANSWERS: self._answers.lines()})
            self.rank.folder.remove_generation(self.rank.membership.generation)
            _log.info("service over job=%s reason=%s summary=%s", order.job_id, reason, summary)
        return self.ended(reason)

    def ended(self, reason: EndReason) -> Ended:
        return Ended(
            reason=reason,
            samples_done=self._done,
            node_s=self._node_s,
            answers=self.rank.leads and reason == "finished",
        )


def _counts_of(profile: PathProfile) -> tuple[LayerRouting, ...]:
    return tuple(
        LayerRouting(tokens=tuple(profile.popularity(layer).loads.tolist()))
        for layer in range(profile.layers)
    )


def _bytes_of(profile: PathProfile | None) -> bytes:
    return b"" if profile is None else b"".join(each.tobytes() for each in profile.arrays().values())
