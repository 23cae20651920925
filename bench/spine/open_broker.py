"""One open broker for all parts of a run: each would take seconds to start its own."""

import atexit
import itertools
from contextlib import ExitStack
from functools import cache

from infra.broker import RunningBroker, watched_broker
from infra.kafka.settings import broker_settings

_until_exit = ExitStack()
_numbers = itertools.count()


@cache
def open_broker() -> RunningBroker:
    """Start an ephemeral broker at the first call; it is stopped when the process ends."""
    broker = _until_exit.enter_context(watched_broker(broker_settings(), ephemeral=True))
    atexit.register(_until_exit.close)
    return broker


def fresh_prefix() -> str:
    """Return a prefix of topics that no part has used."""
    return f"bench{next(_numbers)}"
