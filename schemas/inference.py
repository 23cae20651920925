"""Events of the `inference` topic: how loaded inference servers are, which are lent, and how many are wanted
back (thesis, sections 3.3 and 3.4).

The inference side decides by itself what it lends and when; a zone that lends is configured with `Lending`.
"""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from schemas.base import Event, Identifier, UnixTime, distinct

MAX_SERVERS = 800
"""Servers that one event lends or wants back, since each leads to two or three decisions; more need another
event."""
MAX_SERVING = 4_000
"""Servers that one report of the load names."""


class InferenceEvent(Event):
    """An event of the inference side about a zone that lends."""

    zone: Identifier


class InferenceLoadReported(InferenceEvent):
    """Share of a zone that serves inference. The latest one counts."""

    TYPE: ClassVar = "millrace.inference.load_reported.v1"

    time_s: UnixTime
    """When it was measured; one earlier than the latest is ignored."""
    load: Annotated[float, Field(ge=0, le=1)]
    """The fraction of all GPUs that the zone owns that serve at least one request, or must be free to."""
    serving: Annotated[
        tuple[Identifier, ...],
        Field(max_length=MAX_SERVING, json_schema_extra={"uniqueItems": True}),
        AfterValidator(distinct),
    ] = ()
    """The servers that serve requests, where the producer knows; they are not lent."""


class CapacityOffered(InferenceEvent):
    """These servers are idle, and are lent until they are reclaimed."""

    TYPE: ClassVar = "millrace.capacity.offered.v1"

    offer_id: Identifier
    servers: Annotated[
        tuple[Identifier, ...],
        Field(min_length=1, max_length=MAX_SERVERS, json_schema_extra={"uniqueItems": True}),
        AfterValidator(distinct),
    ]


class CapacityReclaimed(InferenceEvent):
    """A number of lent servers is wanted back by some time. Which ones, their users choose."""

    TYPE: ClassVar = "millrace.capacity.reclaimed.v1"

    reclaim_id: Identifier
    servers: Annotated[int, Field(ge=1, le=MAX_SERVERS)]
    due_s: UnixTime
    """When they must be back: no sooner than the notice that the zone guarantees."""
