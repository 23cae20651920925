"""Processes of a job that do next to nothing, and end in one way or another."""

import logging
import os
import time
from multiprocessing.connection import Connection
from typing import Annotated

from pydantic import Field, TypeAdapter

from executors.elastic.messages import DIRECTIVES
from executors.gang.inbox import Inbox
from executors.gang.membership import Membership
from executors.gang.messages import Ended, Failed

Word = Membership | Ended | Failed
WORDS: TypeAdapter[Word] = TypeAdapter(Annotated[Word, Field(discriminator="kind")])
STATUS = 3


def finish(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Says where it is, and ends as it should."""
    inbox = Inbox(connection, DIRECTIVES)
    inbox.tell(Membership.model_validate_json(order_json))
    inbox.tell(Ended(reason="finished", samples_done=1, node_s=0.0))


def warn(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Writes a line to the log."""
    logging.getLogger("small").warning("a job failed")
    finish(order_json, connection)


def die(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Ends without a word."""
    os._exit(STATUS)


def fail(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Fails by the loss of another."""
    Inbox(connection, DIRECTIVES).tell(Failed(error="another is gone", permanent=False, cause="peer"))


def load(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Is at something that takes long, and nobody counts on it yet."""
    inbox = Inbox(connection, DIRECTIVES)
    inbox.tell(Membership.model_validate_json(order_json))
    time.sleep(3_600)


def hang(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Is at something that never ends, while others count on it."""
    inbox = Inbox(connection, DIRECTIVES)
    inbox.commit()
    inbox.tell(Membership.model_validate_json(order_json))
    time.sleep(3_600)
