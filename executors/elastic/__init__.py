"""The runner `elastic`: data-parallel training with workers that join and leave meanwhile.

The node's own process does not import torch: a fork server does, and the ranks are forked from it.
"""

from executors.elastic.settings import ElasticSettings
from executors.gang.runner import GangRunnerKind
from schemas.elastic.commands import WorkersAssigned, WorkersReleased


class ElasticTraining(GangRunnerKind):
    """See `GangRunnerKind`."""

    commands = (WorkersAssigned, WorkersReleased)
    SETTINGS = ElasticSettings
    RUNNER = "executors.elastic.runner:ElasticRunner"
    MODULES = ("executors.elastic.rank",)
