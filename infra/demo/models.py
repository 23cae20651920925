"""Models for the jobs of the demo that bring their own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from infra.deployment.folders import Folders
from infra.deployment.fork_server import ForkServer
from infra.deployment.service import Service

MODEL = "tiny-llama"
_POLL_S = 0.1


@contextmanager
def default_model(folders: Folders, server: ForkServer) -> Iterator[Callable[[], None]]:
    """Have the small default model found, and made if there is none. What the block is given waits until the
    model lies in the folder of models.

    Raises:
        CommandError: it cannot be made.
    """
    function = "executors.lora.default_base:place_default_base"
    launch = server.forked("default-model", {}, function, str(folders.models / MODEL))
    making = Service("default-model", launch, folders.logs)

    def begin() -> None:
        with suppress(OSError, EOFError):  # the server is stopped before it was ready
            making.start()

    # It begins when the server is ready, and meanwhile other services start.
    beginning = threading.Thread(target=begin, daemon=True)
    beginning.start()

    def await_model() -> None:
        while beginning.is_alive() or making.exit_status != 0:
            server.check()
            if making.exit_status is not None:
                making.keep_running()
            elif making.pid is None and not beginning.is_alive():
                begin()  # its server died before it was forked
            time.sleep(_POLL_S)

    try:
        yield await_model
    finally:
        if not beginning.is_alive():
            making.stop()
