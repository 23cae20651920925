"""Base types of all commands to nodes.

They are part of the chained decision log and are also sent to `commands`.
"""

from typing import ClassVar

from schemas.base import Identifier, Outcome, RunId


class NodeCommand(Outcome):
    """A decision that is sent to one node."""

    zone: Identifier
    node: Identifier


class Command(NodeCommand):
    """A command to one runner of one node; each kind of command derives from it."""

    RUNNER: ClassVar[str]
    """The name of the runner that obeys it."""
    CANCELS: ClassVar[bool] = False
    """Whether it only takes work back. A node obeys such a command before the others that it reads with it,
    again in its turn, and while its disks have no room: applying it twice is applying it once."""


class RunDisowned(NodeCommand):
    """The cell does not have this run on the node, although the node has reported that it continues.

    The runner that has the run ends it and reports the end; what is on disk stays. A node without the run has
    nothing to do. The command is obeyed in its order: an assignment before it may have replaced the run.
    """

    TYPE: ClassVar = "millrace.run.disowned.v1"

    run_id: RunId
    job_id: Identifier
