"""The installation of policies: explicit, once per process, and before any record of a policy is used."""

import multiprocessing
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import InstallationError
from schemas.installed import KINDS, install
from schemas.interpreters import python_command
from streams.installation import install_policies
from tests.support.entry_points import install_entry_point

BEFORE = """
from schemas.jobs import JobSubmitted
from schemas.installed import KINDS
from schemas.registry import EVENT_TYPES
for use in (lambda: KINDS["auction"], lambda: len(EVENT_TYPES), lambda: JobSubmitted(cell="c")):
    try:
        use()
    except Exception as error:
        print(type(error).__name__, error)
"""
AFTER = """
from schemas.jobs import JobSubmitted
from streams.installation import install_policies
install_policies()
print(JobSubmitted.__pydantic_complete__)
"""


def run(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    entries = ":".join(map(str, (*path, *filter(None, sys.path))))
    command, environment = python_command("-c", program), {"PYTHONPATH": entries}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def kinds() -> list[str]:
    install_policies()
    return list(KINDS)


def test_early_use_names_installing_function():
    table, types, model = run(BEFORE).stdout.splitlines()[:3]
    assert table.startswith("InstallationError no policies are installed in this process: call")
    assert types == table
    assert "schemas.installed.install" in model


def test_models_that_were_imported_before_are_complete_afterwards():
    assert run(AFTER).stdout.split() == ["True"]


def test_the_same_policies_may_be_installed_again():
    before = dict(KINDS)
    install(reversed(list(KINDS.values())))
    install_policies()
    assert dict(KINDS) == before


def test_other_policies_cannot_be_installed_afterwards():
    auction = KINDS["auction"]
    with pytest.raises(InstallationError, match="are installed already, and cannot be replaced by auction"):
        install([auction])
    with pytest.raises(InstallationError, match="are installed already"):
        install([replace(auction, warm_up=None), *(kind for kind in KINDS.values() if kind is not auction)])


def test_two_policies_of_one_kind_are_refused():
    with pytest.raises(InstallationError, match="two policies are of kind auction"):
        install([*KINDS.values(), KINDS["auction"]])


def test_no_policy_is_refused():
    with pytest.raises(InstallationError, match="no policy"):
        install([])


@pytest.mark.parametrize("value", ["schemas.kind:Workload", "streams.policies.auction.kind:AUCTION"])
def test_entry_point_without_policy_is_refused(tmp_path, value):
    site = install_entry_point(tmp_path, "millrace.policies", "other", value)
    ran = run("from streams.installation import install_policies; install_policies()", site)
    assert f"entry point other = {value} of millrace.policies is not a policy of that kind" in ran.stderr


def test_duplicate_kind_in_union_is_refused():
    program = (
        "from dataclasses import replace\n"
        "from typing import Literal\n"
        "from schemas.kind import Workload\n"
        "from schemas.installed import install\n"
        "from streams.policies.auction.kind import AUCTION, TITAN\n"
        "class Same(Workload):\n"
        "    kind: Literal['lora'] = 'lora'\n"
        "install([AUCTION, replace(TITAN, workloads=(Same,))])\n"
    )
    assert "two workload types are of kind lora" in run(program).stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods_install_same_policies(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(kinds) == list(KINDS)
