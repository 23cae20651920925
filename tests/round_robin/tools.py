"""The policy's parts for displays and simulations."""

from infra.tools import PolicyTools

TOOLS = PolicyTools(
    virtual_runners={"counting": "tests.round_robin.virtual:VirtualCounting"},
    drawn="tests.round_robin.drawing:draw",
    figures="tests.round_robin.figures:RoundRobinFigures",
    view="tests.round_robin.view:RoundRobinView",
)
