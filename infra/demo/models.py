"""Model of the demo's jobs that have models of their own."""

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
    """Find the small default model, or make it, while the block runs; yield a function that waits for it.

    Raises:
        CommandError: the model cannot be made.
    """
    function = "executors.lora.default_base:place_default_base"
    launch = server.forked("default-model", {}, function, str(folders.models / MODEL))
    making = Service("default-model", launch, folders.logs)

    def begin() -> None:
        with suppress(OSError, EOFError):  # the server stopped before it was ready
            making.start()

    # A thread waits for the server, so other services start meanwhile.
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
