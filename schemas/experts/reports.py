"""Counts by executors of the experts that tokens are routed to, on the topic `fleet`."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from schemas.base import Record
from schemas.experts.workload import MAX_EXPERTS, MAX_MOE_LAYERS
from schemas.fleet import RunReport

MAX_ELEMENTS = 2_048
ELEMENTS_PER_LAYER = 5
"""A report has no more than so many counts, each layer taken for so many more: it fits a record of `fleet`
however it is written. That is 7 layers of 256 experts, 15 of 128, or 29 of 64."""
Tokens = Annotated[int, Field(ge=0, le=2**40)]


class LayerRouting(Record):
    """Tokens that one MoE layer has routed."""

    tokens: Annotated[tuple[Tokens, ...], Field(min_length=1, max_length=MAX_EXPERTS)]
    """By expert. A token with two experts counts for both."""
    doubles: Tokens = 0
    """Tokens that got two."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 2 * self.doubles > sum(self.tokens):
            raise ValueError(
                f"{self.doubles} tokens got two experts, and all experts together {sum(self.tokens)} tokens"
            )
        return self


class RoutingReport(RunReport):
    """Tokens that were routed, layer by layer."""

    layers: Annotated[tuple[LayerRouting, ...], Field(min_length=1, max_length=MAX_MOE_LAYERS)]
    """MoE layers only, in the order of the model."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        experts = {len(layer.tokens) for layer in self.layers}
        if len(experts) > 1:
            raise ValueError(f"layers have {min(experts)} to {max(experts)} experts: all have as many")
        layers, count = len(self.layers), len(self.layers[0].tokens)
        if layers * (count + ELEMENTS_PER_LAYER) > MAX_ELEMENTS:
            most = MAX_ELEMENTS // (count + ELEMENTS_PER_LAYER)
            raise ValueError(f"{layers} layers of {count} experts, at most {most} such layers fit a report")
        return self


class ExpertsProfiled(RoutingReport):
    """The profile stage of a service is over: what it has counted, and how well it foretells."""

    TYPE: ClassVar = "millrace.experts.profiled.v1"

    path_length: Annotated[int, Field(ge=1, le=8)]
    """Layers of a sample path (l)."""
    paths: Annotated[int, Field(ge=0, le=10**9)]
    """Sample paths of that length that are kept, over all layers."""
    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    """Fraction of held-back batches and layers whose top-2 list was estimated right (thesis,
    section 4.7.3.2); None if none was."""


class ExpertsRouted(RoutingReport):
    """Tokens that were routed since the report before."""

    TYPE: ClassVar = "millrace.experts.routed.v1"

    batches: Annotated[int, Field(ge=1, le=10**9)]
    interval_s: Annotated[float, Field(ge=0, le=1e9)]
    """In which they were."""
    revised: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Number of times that a layer's placement was made anew for a batch, after its gating network had
    chosen."""
    revision: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Revision of the placement that the batches were served with; of a job that trains, 0."""
