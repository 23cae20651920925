"""Mixture-of-experts models with adaptive gating (thesis, chapter 5), and the runner `moe`, by which they are
trained and served over ranks (chapter 4).

The node's own process does not import torch: a fork server does, and the ranks are forked from it.
"""

from executors.gang.runner import GangRunnerKind
from executors.moe.settings import MoeSettings
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased


class ExpertRanks(GangRunnerKind):
    """See `GangRunnerKind`."""

    commands = (RanksAssigned, ExpertsPlaced, RanksReleased)
    SETTINGS = MoeSettings
    RUNNER = "executors.moe.runner:MoeRunner"
    MODULES = ("executors.moe.serving.rank", "executors.moe.training.rank")
