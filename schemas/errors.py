"""Errors with a message for users."""

from typing import ClassVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails


class ReadableError(Exception):
    """Its message is for whoever runs the program: what was wrong, where, and what to do.

    Where there are more lines than one, the first is complete; the others are further faults.
    """

    ends_with_log: ClassVar[bool] = False
    """Whether the further lines are the end of a log instead."""


def own_faults(error: ValidationError) -> list[ErrorDetails]:
    """Its faults, without lists that are too short only because one of their entries is at fault."""
    faults = error.errors(include_url=False, include_input=False)
    above = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in above]


def message(fault: ErrorDetails) -> str:
    """What is wrong, without the words that only those who know Pydantic understand."""
    match fault["type"]:
        case "value_error":
            return fault["msg"].removeprefix("Value error, ")
        case "union_tag_invalid":
            known = fault["ctx"]["expected_tags"].replace("'", "")
            return f"kind {fault['ctx']['tag']} is not known, the known ones are {known}"
        case "union_tag_not_found":
            return "no kind is given"
    return fault["msg"]
