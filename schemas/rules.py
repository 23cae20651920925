"""The version of the rules that decides for a cell, and the event that changes it."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Event

RULES_VERSION = 1
"""Version of the newest rules, raised with every change by which some ledger gives other decisions."""

RulesVersion = Annotated[int, Field(ge=1, le=1_000_000)]


class RulesAdopted(Event):
    """Newer rules decide for the cell from here on. Only the worker that folds the cell writes it, to the
    ledger.

    The event is valid if no event of the cell lies between it and `state_offset`, and `previous_rules` decide
    for the cell up to there. Otherwise it changes nothing under any rules.
    """

    TYPE: ClassVar = "millrace.rules.adopted.v1"

    rules: RulesVersion
    previous_rules: RulesVersion
    release: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,64}$")]
    """Version of Millrace with these `rules`."""
    state_offset: Annotated[int, Field(ge=0, le=10**18 - 1)]
    """Ledger offset of the last event that `previous_rules` decided."""
    state_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256 of the cell's packed state after that event, which is stored in `rules.states`."""
    state_layout: Annotated[int, Field(ge=1, le=1_000_000)]
    """Version of the layout of the packed state, on which its digest depends."""
