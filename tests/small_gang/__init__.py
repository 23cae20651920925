"""A policy that is no part of the product: jobs of several processes, in the order of their submission."""

from pathlib import Path

from tests.support.entry_points import install_entry_point


def install(site: Path) -> Path:
    """Install the policy and its runner below a folder, and return the folder."""
    install_entry_point(site, "millrace.policies", "small_gang", "tests.small_gang.kind:SMALL_GANG")
    return install_entry_point(site, "millrace.runners", "line", "tests.small_gang.runner:LineFitting")
