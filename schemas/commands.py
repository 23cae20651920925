"""What all commands to nodes have in common.

They are part of the chained decision log and are also sent to `commands`.
"""

from typing import ClassVar

from schemas.base import Identifier, Outcome


class Command(Outcome):
    """What one runner of one node is told; each kind of command derives from it."""

    RUNNER: ClassVar[str]
    """The name of the runner that obeys it."""
    CANCELS: ClassVar[bool] = False
    """Whether it only takes work back. A node obeys such a command before the others that it reads with it,
    again in its turn, and while its disks have no room: applying it twice is applying it once."""

    zone: Identifier
    node: Identifier
