"""The runner `tuner`: fine-tuning tasks of one base model, which stays loaded between tasks.

A task is a gang: its ranks over nodes, in one generation. Ranks meet, connect and fail as in every gang
(`executors.gang`). But a rank is not started for a job: it has one GPU and the base model, and serves one
task after another. A task has up to two jobs, each with a run of its own, may reuse the connected ranks of
the task before, and survives the loss of a rank. So the loop of its parts and their reports are separate, see
`executors.tuner.rank`.

The node's own process does not import torch: a fork server does, and the ranks are forked from it.
"""

from executors.gang.runner import GangRunnerKind
from executors.tuner.settings import TunerSettings
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased


class FineTuning(GangRunnerKind):
    """See `GangRunnerKind`. Loading takes seconds to minutes: each rank loads the base model."""

    commands = (ProfileOrdered, TaskAssigned, TaskReleased, LoaderPrewarmed)
    SETTINGS = TunerSettings
    RUNNER = "executors.tuner.runner:TunerRunner.started"
    MODULES = ("executors.tuner.rank",)
