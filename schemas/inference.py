"""Events of the `inference` topic: load of inference servers, offers and reclaims (thesis, sections 3.3 and
3.4).

The inference side itself decides on loans; a zone that lends is configured with `Lending`.
"""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from schemas.base import Event, Identifier, UnixTime, distinct

MAX_SERVERS = 800
"""Most servers that one event offers or reclaims, since each leads to two or three decisions."""
MAX_SERVING = 4_000
"""Most servers that one report of the load names."""


class InferenceEvent(Event):
    """An event of the inference side about a zone that lends."""

    zone: Identifier


class InferenceLoadReported(InferenceEvent):
    """Fraction of a zone that serves inference. The latest one counts."""

    TYPE: ClassVar = "millrace.inference.load_reported.v1"

    time_s: UnixTime
    """Time of the measurement; one earlier than the latest is ignored."""
    load: Annotated[float, Field(ge=0, le=1)]
    """Fraction of the zone's own GPUs that serve requests, or must be free for them."""
    serving: Annotated[
        tuple[Identifier, ...],
        Field(max_length=MAX_SERVING, json_schema_extra={"uniqueItems": True}),
        AfterValidator(distinct),
    ] = ()
    """Servers that serve requests, if the producer reports them; they are not lent."""


class CapacityOffered(InferenceEvent):
    """An offer of idle servers, which are lent until they are reclaimed."""

    TYPE: ClassVar = "millrace.capacity.offered.v1"

    offer_id: Identifier
    servers: Annotated[
        tuple[Identifier, ...],
        Field(min_length=1, max_length=MAX_SERVERS, json_schema_extra={"uniqueItems": True}),
        AfterValidator(distinct),
    ]


class CapacityReclaimed(InferenceEvent):
    """A number of lent servers must be back by some time. Their users choose the servers."""

    TYPE: ClassVar = "millrace.capacity.reclaimed.v1"

    reclaim_id: Identifier
    servers: Annotated[int, Field(ge=1, le=MAX_SERVERS)]
    due_s: UnixTime
    """Time by which they must be back: no sooner than the zone's notice."""
