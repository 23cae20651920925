"""The installation of the policies that distributions register by entry points.

Every process that reads or makes records of policies calls this once, at its start: services, commands, and
the processes that these spawn. A forked process has the policies of its parent.
"""

from importlib.metadata import entry_points

from schemas.base import kind_of
from schemas.errors import InstallationError
from schemas.installed import install
from schemas.kind import PolicyKind


def install_policies(distribution: str | None = None) -> None:
    """Install the registered policies in this process; repeated calls change nothing.

    Args:
        distribution: the distribution whose policies are installed; None for all.

    Raises:
        InstallationError: an entry point does not refer to a policy of its name, or
            `schemas.installed.install` refuses the policies.
    """
    policies = []
    for point in entry_points(group=PolicyKind.GROUP):
        if distribution is not None and (point.dist is None or point.dist.name != distribution):
            continue
        policy = point.load()
        if not isinstance(policy, PolicyKind) or kind_of(policy.settings) != point.name:
            raise InstallationError(
                f"entry point {point.name} = {point.value} of {PolicyKind.GROUP} is not a policy of that kind"
            )
        policies.append(policy)
    if not policies:
        raise InstallationError(
            f"there is no entry point in the group {PolicyKind.GROUP}: install Millrace, as an editable "
            "distribution for development"
        )
    install(policies)
