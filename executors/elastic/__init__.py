"""The runner `elastic`: data-parallel training on workers that join and leave while it goes on.

The node's own process imports no torch: a fork server does, and the ranks are forked from it.
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
