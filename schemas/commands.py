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
    """Name of the runner that carries it out."""
    CANCELS: ClassVar[bool] = False
    """Whether it only cancels work. A node carries out such a command before the others that it reads with
    it, again in its turn, and also with full disks: it is idempotent."""


class RunDisowned(NodeCommand):
    """The cell does not have this run on the node, although the node has reported that it continues.

    The run's runner ends it and reports the end; files stay. A node without the run has nothing to do. The
    command is carried out in its order: an assignment before it may have replaced the run.
    """

    TYPE: ClassVar = "millrace.run.disowned.v1"

    run_id: RunId
    job_id: Identifier
