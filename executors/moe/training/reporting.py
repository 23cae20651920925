"""Reports of the routing of tokens to experts in a training job."""

import logging
import time

from executors.gang.rank import GangRank
from executors.moe.runner import MoeOrder
from executors.moe.training.routing import BatchRouting, RoutedBatches
from schemas.experts.reports import ELEMENTS_PER_LAYER, MAX_ELEMENTS, ExpertsRouted

_log = logging.getLogger(__name__)


class RoutingReporter:
    """Adds up the routing of batches, and reports it. Only rank 0 reports."""

    def __init__(self, rank: GangRank[MoeOrder], layers: int, experts: int) -> None:
        """Start without batches.

        Args:
            layers: number of layers with experts.
            experts: number of experts of each layer.
        """
        self._rank = rank
        self._routed = RoutedBatches(layers, experts)
        self._fits = layers * (experts + ELEMENTS_PER_LAYER) <= MAX_ELEMENTS
        if rank.leads and not self._fits:
            _log.warning(
                "routing is not reported job=%s layers=%d experts=%d: no report has room for so many",
                *(rank.order.job_id, layers, experts),
            )
        self._reported_s = time.monotonic()

    def add(self, routing: BatchRouting, saved_samples: int) -> None:
        """Add a batch, and report if `report_interval_s` has passed.

        Args:
            saved_samples: samples of the newest checkpoint.
        """
        self._routed.add(routing)
        if time.monotonic() - self._reported_s >= self._rank.order.report_interval_s:
            self.flush(saved_samples)

    def flush(self, saved_samples: int) -> None:
        """Report the routing since the last report."""
        now_s, batches = time.monotonic(), self._routed.batches
        if not (self._rank.leads and self._fits and batches):
            return
        layers, interval_s = self._routed.take(), now_s - self._reported_s
        self._rank.report(ExpertsRouted, saved_samples, layers=layers, batches=batches, interval_s=interval_s)
        self._reported_s = now_s
