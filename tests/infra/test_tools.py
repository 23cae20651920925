"""Every part of a policy that the tools name is there."""

from pkgutil import resolve_name

import pytest

from infra.tools import TOOLS, VirtualAnswer, installed_tools, tools_of
from schemas.installed import KINDS
from schemas.registry import runners_of


@pytest.mark.parametrize("policy", sorted(TOOLS))
def test_named_parts_exist(policy: str) -> None:
    tools = TOOLS[policy]
    references = [tools.drawn, tools.figures, tools.view, *tools.virtual_runners.values()]
    references += [answer.function for answer in tools.virtual_answers]
    assert all(callable(resolve_name(each)) for each in references if each is not None)


def test_each_command_has_simulated_runner() -> None:
    needed = {runner for kind in KINDS for runner in runners_of(kind)}
    assert needed == {runner for tools in installed_tools() for runner in tools.virtual_runners}


def test_tools_are_of_installed_policies() -> None:
    assert TOOLS.keys() <= KINDS.keys()
    assert tools_of("inference").view is None


def test_answers_are_of_one_decision_each() -> None:
    answers: list[VirtualAnswer] = [*{one: None for tools in TOOLS.values() for one in tools.virtual_answers}]
    assert len({answer.decision for answer in answers}) == len(answers)
