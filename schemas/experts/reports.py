"""Executors' counts of the tokens routed to each expert, on the topic `fleet`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Record
from schemas.experts.workload import MAX_EXPERTS, MAX_MOE_LAYERS
from schemas.fleet import RunReport

MAX_ELEMENTS = 2_048
ELEMENTS_PER_LAYER = 5
"""Counts that are added for each layer of a report, besides one per expert. With the bound on all counts, a
report in any format fits into a record of `fleet`: 7 layers of 256 experts, 15 of 128, or 29 of 64."""
Tokens = Annotated[int, Field(ge=0, le=2**40)]


class LayerRouting(Record):
    """Tokens that one MoE layer has routed."""

    tokens: Annotated[tuple[Tokens, ...], Field(min_length=1, max_length=MAX_EXPERTS)]
    """Number of tokens by expert. A token with two experts counts for both."""
    doubles: Tokens = 0
    """Number of tokens with two experts."""

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
            raise ValueError(f"layers have {min(experts)} to {max(experts)} experts: all must have as many")
        layers, count = len(self.layers), len(self.layers[0].tokens)
        if layers * (count + ELEMENTS_PER_LAYER) > MAX_ELEMENTS:
            most = MAX_ELEMENTS // (count + ELEMENTS_PER_LAYER)
            raise ValueError(f"{layers} layers of {count} experts, at most {most} such layers fit a report")
        return self


class ExpertsProfiled(RoutingReport):
    """The profile stage of a service is over: its counts, and the accuracy of its forecast.

    If a model has sample paths of its training, its service begins with these paths, and reports only them.
    Its own profile stage then changes its forecasts without a report.
    """

    TYPE: ClassVar = "millrace.experts.profiled.v1"

    path_length: Annotated[int, Field(ge=1, le=8)]
    """Number of layers of a sample path (l)."""
    paths: Annotated[int, Field(ge=0, le=10**9)]
    """Number of kept sample paths of that length, over all layers."""
    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    """Fraction of held-back batches and layers with a correct estimate of the top-2 list (thesis, section
    4.7.3.2); None without such batches."""
    # Omitted if it is the default, so that reports written before it was added keep their bytes.
    profiled_in: Annotated[
        Literal["service", "training"], Field(exclude_if=lambda where: where == "service")
    ] = "service"
    """Origin of the sample paths: the first batches of the service, or the last steps of the model's
    training."""


class ExpertsRouted(RoutingReport):
    """Tokens that were routed since the previous report."""

    TYPE: ClassVar = "millrace.experts.routed.v1"

    batches: Annotated[int, Field(ge=1, le=10**9)]
    interval_s: Annotated[float, Field(ge=0, le=1e9)]
    """Time since the previous report."""
    revised: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Number of times that a layer's placement was computed again for a batch, after the choice of its gating
    network."""
    revision: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Revision of the placement of the batches; 0 for a job that trains."""
