"""What a node's runner and its rank processes tell each other, as JSON over a pipe."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from executors.gang.messages import Ended, Failed, RankOrder, Release
from schemas.base import Record, RunId, Samples
from schemas.experts.commands import LayerPlacement, MoeWorkload


class Placed(Record):
    """Experts of some layers stand so from the next batch on."""

    kind: Literal["placed"] = "placed"
    revision: int
    layers: tuple[LayerPlacement, ...]


class MoeRankOrder(RankOrder):
    """All that a rank process needs to know when it begins."""

    run_id: RunId
    workload: MoeWorkload
    report_interval_s: float
    revision: int
    placement: tuple[LayerPlacement, ...]
    expert_memory_gib: float | None
    peer_timeout_s: float


class Joined(Record):
    """All ranks have come together, and this one takes part."""

    kind: Literal["joined"] = "joined"
    samples_done: Samples
    dataset_samples: int | None
    """Records in its file; None where it was not read."""
    experts_per_device: int | None = None
    """Of each layer, if it trains."""
    resident_experts: int | None = None
    """How many of them stay in the device's memory."""


class Progress(Record):
    """How far the job is; only its leader says so."""

    kind: Literal["progress"] = "progress"
    samples_done: Samples
    """That would be left if the job ended now."""
    loss: float | None = None
    node_s: float


class Told(Record):
    """A report of the run, to be passed on as it is; only its leader has any."""

    kind: Literal["told"] = "told"
    type: str
    """The CloudEvents type."""
    data: dict[str, Any]


RankDirective: TypeAlias = Placed | Release
"""What a rank is told."""
RankWord: TypeAlias = Joined | Progress | Told | Ended | Failed
"""What a rank says."""

DIRECTIVES: TypeAdapter[RankDirective] = TypeAdapter(Annotated[RankDirective, Field(discriminator="kind")])
WORDS: TypeAdapter[RankWord] = TypeAdapter(Annotated[RankWord, Field(discriminator="kind")])
