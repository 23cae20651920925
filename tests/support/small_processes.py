"""Ranks of a job that do next to nothing, and end in one way or another."""

import logging
import os
import time
from multiprocessing.connection import Connection

from executors.gang.inbox import Inbox
from executors.gang.messages import Ended, Failed, Joined, Membership

STATUS = 3


def finish(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Reports its place, and ends in order."""
    inbox = _joined(order_json, connection)
    inbox.send(Ended(reason="finished", samples_done=1, node_s=0.0))


def warn(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Writes a line to the log."""
    logging.getLogger("small").warning("a job failed")
    finish(order_json, connection)


def die(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Ends without a final message."""
    os._exit(STATUS)


def fail(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Fails by the loss of another."""
    inbox = Inbox(connection, Membership.model_validate_json(order_json))
    inbox.send(Failed(error="another is gone", permanent=False, cause="peer"))


def load(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Loads for long, and no other rank waits for it yet."""
    _joined(order_json, connection)
    time.sleep(3_600)


def hang(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Never ends, while others wait for it."""
    _joined(order_json, connection).commit()
    time.sleep(3_600)


def _joined(order_json: str, connection: "Connection[bytes, bytes]") -> Inbox:
    membership = Membership.model_validate_json(order_json)
    inbox = Inbox(connection, membership)
    inbox.send(Joined(generation=membership.generation, samples_done=0, dataset_samples=None))
    return inbox
