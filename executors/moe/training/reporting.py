"""What the leader of a job that trains reports of it."""

import logging
import time

from executors.moe.ranks.life import Rank
from executors.moe.ranks.messages import Progress, Told
from executors.moe.training.routing import BatchRouting, RoutedBatches
from schemas.experts.reports import ELEMENTS_PER_LAYER, MAX_ELEMENTS, ExpertsRouted

_log = logging.getLogger(__name__)


class Reporter:
    """Of one run. Ranks that do not lead report nothing; they only count their time.

    Attributes:
        node_s: what the steps of this generation have taken.
    """

    def __init__(self, rank: Rank, layers: int, experts: int) -> None:
        """Begin, with nothing saved.

        Args:
            layers: with experts.
            experts: of each layer.
        """
        self._rank = rank
        self._routed = RoutedBatches(layers, experts)
        self._fits = layers * (experts + ELEMENTS_PER_LAYER) <= MAX_ELEMENTS
        if rank.leads and not self._fits:
            _log.warning(
                "routing is not reported job=%s layers=%d experts=%d: no report has room for so many",
                *(rank.order.job_id, layers, experts),
            )
        self._samples_done = 0
        self._loss: float | None = None
        self.node_s = 0.0
        self._reported_s = self._progressed_s = time.monotonic()

    def stepped(self, routing: BatchRouting, loss: float | None, took_s: float) -> None:
        """A step is done."""
        self.node_s += took_s
        self._loss = loss
        self._routed.add(routing)
        now_s, order = time.monotonic(), self._rank.order
        if now_s - self._reported_s >= order.report_interval_s:
            self._report_routed()
        if now_s - self._progressed_s >= order.progress_s:
            self._progress()

    def saved(self, samples_done: int) -> None:
        """So much is done, whatever happens now."""
        self._samples_done = samples_done
        self._progress()

    def resumed(self, samples_done: int) -> None:
        """The job goes on from there."""
        self._samples_done = samples_done

    def close(self) -> None:
        """Tell what has not been told."""
        self._report_routed()

    def _progress(self) -> None:
        self._progressed_s = time.monotonic()
        if self._rank.leads:
            self._rank.inbox.tell(
                Progress(samples_done=self._samples_done, loss=self._loss, node_s=self.node_s)
            )

    def _report_routed(self) -> None:
        now_s, batches = time.monotonic(), self._routed.batches
        if not (self._rank.leads and self._fits and batches):
            return
        order = self._rank.order
        report = ExpertsRouted(
            cell=order.cell,
            node=order.node,
            run_id=order.run_id,
            job_id=order.job_id,
            samples_done=self._samples_done,
            layers=self._routed.take(),
            batches=batches,
            interval_s=now_s - self._reported_s,
        )
        self._reported_s = now_s
        self._rank.inbox.tell(Told(type=report.TYPE, data=report.model_dump(mode="json")))
