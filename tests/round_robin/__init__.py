"""A policy that is no part of the product: a queue whose jobs take turns on the nodes, for no money.

`install` registers it with the processes whose path has a folder. How to write one is described in
docs/adding-a-policy.md, page by page of this package.
"""

from pathlib import Path

from tests.support.entry_points import install_entry_point


def install(site: Path) -> Path:
    """Install the policy and its runner below a folder, which is returned."""
    install_entry_point(site, "millrace.policies", "round_robin", "tests.round_robin.kind:ROUND_ROBIN")
    return install_entry_point(site, "millrace.runners", "counting", "tests.support.counting:Counting")
