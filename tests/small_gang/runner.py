"""The runner on a node, without torch."""

from typing import ClassVar

from executors.gang.local_gang import GangTraits
from executors.gang.messages import Members, RankOrder
from executors.gang.runner import GangRunner, GangRunnerKind
from executors.settings import JobSettings
from tests.small_gang.kind import LineAssigned, LineReleased, LineWorkload

LineOrder = RankOrder[LineWorkload]


class LineRunner(GangRunner[LineAssigned]):
    """See `GangRunner`."""

    ASSIGNED = (LineAssigned,)
    RELEASED = LineReleased
    TRAITS: ClassVar = GangTraits[LineAssigned](
        order=LineOrder,
        members_of=lambda command: Members(command.members),
        work_of=lambda _: "tests.small_gang.training:run_rank",
    )


class LineFitting(GangRunnerKind):
    """See `GangRunnerKind`."""

    commands = (LineAssigned, LineReleased)
    SETTINGS = JobSettings
    RUNNER = "tests.small_gang.runner:LineRunner"
    MODULES = ("tests.small_gang.training",)
