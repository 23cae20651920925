"""The parts of a policy that only displays, workloads and simulations use.

Those of Millrace's policies are in `TOOLS`. Another distribution names its own in its manifest
(`PolicyKind.tools`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name

from schemas.auction.deliveries import PreprocessingDelivered, PreprocessingFailed, PreprocessingOrdered
from schemas.base import Event, Outcome
from schemas.elastic.commands import WorkersAssigned
from schemas.experts.commands import RanksAssigned
from schemas.installed import KINDS
from schemas.kind import Reference
from schemas.lora_commands import SlotAssigned
from schemas.merging.commands import TaskAssigned


@dataclass(frozen=True)
class VirtualAnswer:
    """Simulated answer of a service outside of the cell to a decision, such as of a vendor to an order."""

    decision: type[Outcome]
    events: tuple[type[Event], ...]
    """Types of answers. A what-if leaves recorded ones out."""
    function: Reference
    """`(Decision, time_s: float) -> Moments`: the answers to a decision, from its time on."""


@dataclass(frozen=True)
class PolicyTools:
    """Parts of a policy, each optional and imported where it is used."""

    virtual_runners: Mapping[str, Reference] = field(default_factory=dict)
    """Simulated runners of its commands, by the runners' names: see `VirtualRunner`."""
    virtual_answers: tuple[VirtualAnswer, ...] = ()
    drawn: Reference | None = None
    """`(Drawing) -> list[TimedEvent[Event]]`: draws jobs for simulations; None if jobs must be given."""
    figures: Reference | None = None
    """`(CellConfigured, zone: str, Jobs, Nodes) -> ZoneFigures`: figures of a zone besides the summary."""
    view: Reference | None = None
    """`() -> PolicyView`: words for people; a general view without it."""


_AUCTION = PolicyTools(
    virtual_runners={SlotAssigned.RUNNER: "infra.simulation.lora.slots:VirtualSlots"},
    virtual_answers=(
        VirtualAnswer(
            decision=PreprocessingOrdered,
            events=(PreprocessingDelivered, PreprocessingFailed),
            function="infra.simulation.auction.vendors:deliver",
        ),
    ),
    drawn="infra.workloads.auction:draw",
    figures="infra.figures.auction.figures:AuctionFigures",
    view="infra.views.auction.view:AuctionView",
)
TOOLS: Mapping[str, PolicyTools] = {
    **dict.fromkeys(("auction", "pdftsp", "eft", "ntm", "fixed_price", "titan"), _AUCTION),
    "elastic": PolicyTools(
        virtual_runners={WorkersAssigned.RUNNER: "infra.simulation.elastic.virtual_workers:VirtualWorkers"},
        drawn="infra.workloads.elastic.drawing:draw",
        figures="infra.figures.elastic.figures:ElasticFigures",
        view="infra.views.elastic.view:ElasticView",
    ),
    "experts": PolicyTools(
        virtual_runners={RanksAssigned.RUNNER: "infra.simulation.experts.virtual_ranks:VirtualRanks"},
        drawn="infra.workloads.experts:draw",
        figures="infra.figures.experts.figures:ExpertsFigures",
        view="infra.views.experts.view:ExpertsView",
    ),
    "merging": PolicyTools(
        virtual_runners={TaskAssigned.RUNNER: "infra.simulation.merging.tuner:VirtualTuner"},
        drawn="infra.workloads.merging:draw",
        figures="infra.figures.merging.figures:MergingFigures",
        view="infra.views.merging.view:MergingView",
    ),
}
"""Parts of Millrace's policies, by kind; `inference` has none."""


@cache
def tools_of(policy: str) -> PolicyTools:
    """Return the parts of an installed policy, by its kind."""
    reference = KINDS[policy].tools
    if reference is None:
        return TOOLS.get(policy, PolicyTools())
    tools = resolve_name(reference)
    assert isinstance(tools, PolicyTools)
    return tools


def installed_tools() -> list[PolicyTools]:
    """Return the parts of all installed policies, in the order of their kinds."""
    return list(map(tools_of, KINDS))
